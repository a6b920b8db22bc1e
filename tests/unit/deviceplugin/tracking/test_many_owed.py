"""Many owed allocations: what each costs does not grow with their number."""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs
import pytest

from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.tracking.allocation_record import AllocationRecord
from kdp.deviceplugin.tracking.allocations import Allocations
from kdp_testkit.patience import PATIENCE

MANY = 20_000


def record(number: int, ids: tuple[str, ...], **state: object) -> AllocationRecord:
    return AllocationRecord(uid=f"u{number}", resource="example.com/w", ids=ids, state=state)


@pytest.mark.thorough
def test_many_owed_allocations_are_taken_over_in_seconds(figure: Callable[[str, float, str], None]) -> None:
    owed = Allocations(Pace())
    began = time.monotonic()
    owed.adopt([attrs.evolve(record(n, ("w0",), of=n), is_seen=True) for n in range(MANY)], 0.0)
    took = time.monotonic() - began
    figure("20,000 owed allocations of one device with states are taken over", took, "s")
    assert len(owed.owed()) == MANY
    assert took < PATIENCE


def test_a_state_that_a_later_hook_left_decides_what_is_the_same() -> None:
    owed = Allocations(Pace())
    first = record(1, ("w0",), a=1)
    owed.add(first, 0.0)
    owed.restate(first, {"a": 2})
    owed.add(record(2, ("w0",), a=1), 0.0)
    assert [each.uid for each in owed.owed()] == ["u1", "u2"]
    owed.add(record(3, ("w0",), a=2), 0.0)
    assert [each.uid for each in owed.owed()] == ["u2", "u3"]
