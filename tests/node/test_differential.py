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
    played: dict[bool, list[Step]] = {}

    async def on(simulated: bool) -> None:
        played[simulated] = await play(SCENARIOS[name], minor, simulated=simulated, settings=SETTINGS.get(name))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(on, True)
        tasks.start_soon(on, False)
    differs = difference(lines(played[True]), lines(played[False]))
    leave(Row(minor.name, name, "", title(SCENARIOS[name]), not differs))
    assert not differs, f"{SCENARIOS[name].__doc__}\n{differs}"
