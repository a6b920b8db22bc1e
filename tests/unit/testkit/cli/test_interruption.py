"""Work that a signal ends."""

from __future__ import annotations

import os
import signal

import anyio
import pytest

from kdp_testkit.cli.interruption import Interrupted, unless_interrupted


async def test_what_the_work_raises_is_in_no_group() -> None:
    async def work() -> None:
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        await unless_interrupted(work)


async def test_a_signal_cancels_the_work_and_is_named() -> None:
    number: signal.Signals = signal.SIGTERM
    seen: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await anyio.sleep_forever()
        finally:
            seen.append("cleaned up")

    with pytest.raises(Interrupted, match=number.name):
        await unless_interrupted(work)
    assert seen == ["cleaned up"]
