"""Chaos on the kubelet's own device managers. ``KDP_CHAOS=600`` plays for ten minutes on each."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

from tests.chaos.judge import Counts
from tests.chaos.play import play
from tests.chaos.plugin import RESOURCE
from tests.chaos.world import World

from .backend import Figure
from .nodekit import DeviceManager

SECONDS = float(os.environ.get("KDP_CHAOS", "20"))
SEED: Final = 1  # `make chaos` draws others


async def test_no_rule_is_broken(devmgr: DeviceManager, tmp_path: Path, figure: Figure) -> None:
    async def look() -> Counts:
        count = await devmgr.count()
        return Counts(capacity=count.capacity.get(RESOURCE, 0), allocatable=count.allocatable.get(RESOURCE, 0))

    world = World(tmp_path, devmgr, look, random.Random(SEED))  # noqa: S311 - reproducible
    played = await play(world, SECONDS, print)
    assert not world.judge.violations, f"seed {SEED}: {world.judge.violations}\n{world.log}"
    assert world.judge.counts["admitted"]
    for what, count in (("operations", played.total()), *sorted(world.judge.counts.items())):
        figure(f"chaos on {devmgr.minor.release}: {what}", count, "")
