"""When a release that failed is tried again; the rest is in test_allocations_properties.py."""

from __future__ import annotations

import pytest

from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.tracking.allocation_record import AllocationRecord
from kdp.deviceplugin.tracking.allocations import Allocations


@pytest.mark.parametrize(
    ("scrubs", "pauses"), [(False, [5, 10, 20, 40, 80, 160, 300, 300]), (True, [5, 10, 20, 40, 60, 60, 60, 60])]
)
def test_a_device_that_had_been_erased_after_three_minutes_was_withheld_for_five(
    scrubs: bool, pauses: list[int]
) -> None:
    """The pauses between two tries doubled, up to 5 min, while nobody could use the device."""
    allocations = Allocations(Pace())
    record = AllocationRecord(uid="u", resource="example.com/scratch", ids=("s0",), state={}, is_back=scrubs)
    allocations.add(record, 0.0)
    found: list[float] = []
    for _ in pauses:
        allocations.failed(record, 100.0)
        found.append(record.retry_at - 100.0)
    assert found == pauses
