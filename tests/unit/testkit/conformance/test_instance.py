"""Levers of hardware that all instances share."""

from __future__ import annotations

import pytest

from kdp_testkit.conformance.checks import NotApplicable
from kdp_testkit.conformance.instance import LeverName, Levers, SharedLevers

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
