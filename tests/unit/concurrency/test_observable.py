from __future__ import annotations

import asyncio

import pytest

from kdp.concurrency.observable import Observable

pytestmark = pytest.mark.anyio


async def test_a_reader_gets_the_newest_and_nothing_queues_up() -> None:
    latest = Observable(0)
    for value in range(1, 1000):
        latest.set(value)
    assert await latest.after(0) == 999
    assert latest.version == 999


async def test_a_reader_who_leaves_leaves_nothing_behind() -> None:
    latest = Observable(0)
    reader = asyncio.ensure_future(latest.after(0))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert not latest._changed._waiters
    latest.set(1)


async def test_a_reader_who_leaves_at_the_moment_of_the_change_does_no_harm() -> None:
    latest = Observable(0)
    leaving, staying = (asyncio.ensure_future(latest.after(0)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    latest.set(1)
    assert await staying == 1
    assert not latest._changed._waiters
