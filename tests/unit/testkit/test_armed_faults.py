from __future__ import annotations

import anyio

from kdp_testkit.armed_faults import ArmedFaults
from kdp_testkit.protocol.registry import Refusal


async def test_a_fault_meets_each_of_the_calls_that_overlap() -> None:
    """While one call waited in the first fault, the second was counted down by another, and met it no more."""
    faults, refused = ArmedFaults(), 0
    faults.arm_answer(None, method="List", delay=0.01)
    faults.arm_answer(3, method="List", code="UNAVAILABLE", text="no")

    async def call() -> None:
        nonlocal refused
        try:
            await faults.meet("List")
        except Refusal:
            refused += 1

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(call)
    assert refused == 3
