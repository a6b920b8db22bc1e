"""Levers of hardware that all instances share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tests.waiting import until

from kdp_testkit.conformance.checks import NotApplicable
from kdp_testkit.conformance.deviceplugin.restarts import MOST_USED
from kdp_testkit.conformance.instance import LeverName, Levers, SharedLevers, Usage

pytestmark = pytest.mark.anyio


def _noted(notes: list[str]) -> Levers:
    async def heal(device: str) -> None:
        notes.append(f"heal {device}")

    return Levers(
        fail=lambda device, resource: notes.append(f"fail {device} of {resource}"),
        heal=heal,
        vanish=lambda device: notes.append(f"vanish {device}"),
        add=lambda device: notes.append(f"add {device}"),
    )


async def test_what_a_check_left_undone_is_undone() -> None:
    notes: list[str] = []
    levers = SharedLevers(_noted(notes))
    levers.resource = "example.com/w"
    steps: list[tuple[LeverName, str]] = [("fail", "a"), ("fail", "b"), ("heal", "a")]
    steps += [("vanish", "c"), ("vanish", "d"), ("add", "d")]
    for lever, device in steps:
        await levers.pull(lever, device)
    assert notes[:2] == ["fail a of example.com/w", "fail b of example.com/w"]
    notes.clear()
    await levers.undo()
    assert notes == ["add c", "heal b"]
    await levers.undo()
    assert notes == ["add c", "heal b"]


async def test_a_lever_that_failed_half_way_is_undone() -> None:
    notes: list[str] = []

    def fail(device: str) -> None:
        notes.append(f"fail {device}")
        raise OSError("half done")

    levers = SharedLevers(Levers(fail=fail, heal=lambda device: notes.append(f"heal {device}")))
    with pytest.raises(OSError, match="half done"):
        await levers.pull("fail", "a")
    await levers.undo()
    assert notes == ["fail a", "heal a"]


async def test_without_a_lever_to_undo_it_nothing_is_pulled() -> None:
    levers = SharedLevers(Levers(fail=lambda _device: None, vanish=lambda _device: None))
    await levers.pull("fail", "a")
    await levers.pull("vanish", "b")
    await levers.undo()
    with pytest.raises(NotApplicable, match="the lever 'heal' was not given"):
        await levers.pull("heal", "a")


@pytest.fixture
def spins() -> Iterator[list[int]]:
    """More processes that never rest than the machine has processors, by their ids."""
    found = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield [each.pid for each in found]
    finally:
        for each in found:
            each.kill()
            each.wait()


async def test_a_plugin_that_spins_on_a_busy_machine_was_taken_for_one_that_rests(spins: list[int]) -> None:
    """It got 7 % of a processor, since others took the rest."""

    def ran(pid: int) -> float:
        return sum(seconds for seconds, _ in Usage.of_process(pid).of_threads.values())

    async def usage(pid: int, more: float) -> tuple[Usage, float]:
        """Return it after so many seconds of a processor. It has just run: the kernel counts a wait at its end."""
        least = ran(pid) + more
        await until(lambda: ran(pid) > least)
        return Usage.of_process(pid), time.monotonic()

    before = [await usage(pid, 0.0) for pid in spins]
    after = [await usage(pid, 0.2) for pid in spins]
    shares = [now.share_since(was, ended - began) for (was, began), (now, ended) in zip(before, after, strict=True)]
    assert min(shares) > MOST_USED
