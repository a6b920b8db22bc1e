"""Chaos for a minute, and the proof that it finds mistakes. ``make chaos`` plays for an hour, with a new seed."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from kdp.testing import SimulatedKubelet

from .play import on, play
from .world import Variant, World

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECONDS = float(os.environ.get("KDP_CHAOS", "60"))
SEED: Final = 1  # `make chaos` draws others


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def _played(directory: Path, seed: int, seconds: float, **environment: str) -> tuple[World, Counter[str]]:
    async with SimulatedKubelet(seed=seed) as kubelet:
        rng = random.Random(seed)  # noqa: S311 - reproducible
        variant = Variant.drawn(rng)
        world = World(directory, kubelet, on(kubelet, variant.resources), rng, environment, variant=variant)
        return world, await play(world, seconds, print)


async def test_no_rule_is_broken(tmp_path: Path) -> None:
    world, played = await _played(tmp_path, SEED, SECONDS)
    assert not world.judge.violations, f"seed {SEED}:\n{world.log}"
    assert played.total() > SECONDS / 2
    assert world.judge.counts["admitted"] > SECONDS / 8
    assert world.judge.counts["released"] > SECONDS / 16
    assert world.judge.counts["compared"] > SECONDS / 16
