"""The simulated device manager is like the real one: the same scenario, the same observation."""

from __future__ import annotations

import anyio
import pytest

from .nodekit import Minor
from .nodekit.nodes import Step, difference, lines, play
from .scenarios import SCENARIOS, SETTINGS, title
from .table import Row, leave


@pytest.mark.parametrize("name", SCENARIOS)
async def test_both_are_seen_alike(name: str, minor: Minor) -> None:
    # On a busy machine a kubelet may rest longer than what counts as its having done everything: such a difference is
    # not there the second time.
    differs = await _compared(name, minor) and await _compared(name, minor)
    leave(Row(minor.name, name, "", title(SCENARIOS[name]), not differs))
    assert not differs, f"{SCENARIOS[name].__doc__}\n{differs}"


async def _compared(name: str, minor: Minor) -> str:
    """Play a scenario on both, and return how they differ."""
    played: dict[bool, list[Step]] = {}

    async def on(simulated: bool) -> None:
        played[simulated] = await play(SCENARIOS[name], minor, simulated=simulated, settings=SETTINGS.get(name))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(on, True)
        tasks.start_soon(on, False)
    return difference(lines(played[True]), lines(played[False]))
