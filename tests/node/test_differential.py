"""The simulated device manager is like the real one: the same scenario, the same observation.

A play is mostly waiting until a kubelet has done all that was to be done, so those on all versions go on at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from .nodekit import Minor
from .nodekit.nodes import Step, difference, lines, play
from .scenarios import SCENARIOS, SETTINGS, title
from .table import Row, leave

pytestmark = pytest.mark.usefixtures("disturbing")


@pytest.mark.parametrize("name", SCENARIOS)
async def test_both_are_seen_alike(name: str, minors: Sequence[Minor]) -> None:
    found = await _compared(name, minors)
    # On a busy machine a kubelet may rest longer than what counts as its having done everything: such a difference is
    # not there the second time.
    found |= await _compared(name, [minor for minor in minors if found[minor]])
    for minor in minors:
        leave(Row(minor.name, name, "", title(SCENARIOS[name]), not found[minor]))
    differs = [f"on {minor.release}:\n{difference}" for minor, difference in found.items() if difference]
    assert not differs, "\n".join([f"{SCENARIOS[name].__doc__}", *differs])


async def _compared(name: str, minors: Sequence[Minor]) -> dict[Minor, str]:
    """Play a scenario on both of each version, and return how they differ."""
    played: dict[tuple[Minor, bool], list[Step]] = {}

    async def on(minor: Minor, simulated: bool) -> None:
        settings = SETTINGS.get(name)
        played[minor, simulated] = await play(SCENARIOS[name], minor, simulated=simulated, settings=settings)

    async with anyio.create_task_group() as tasks:
        for minor in minors:
            tasks.start_soon(on, minor, True)
            tasks.start_soon(on, minor, False)
    return {minor: difference(lines(played[minor, True]), lines(played[minor, False])) for minor in minors}
