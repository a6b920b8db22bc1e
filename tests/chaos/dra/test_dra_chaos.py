"""Chaos of a DRA driver, and the proof that it finds mistakes. ``make chaos`` plays for longer, with a new seed."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.play import rounds

from .operations import WEIGHTS
from .world import DraWorld, node_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECONDS = float(os.environ.get("KDP_CHAOS", "40"))
SEED = 1


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, for sockets that have the UIDs of their pods in their names."""
    with tempfile.TemporaryDirectory(prefix="kdp-chaos-") as directory:
        yield Path(directory)


async def _played(directory: Path, seed: int, seconds: float, **environment: str) -> tuple[DraWorld, Counter[str]]:
    async with node_of(directory, seed, environment) as world:
        return world, await rounds(world, WEIGHTS, seconds, print)


async def test_no_rule_is_broken(folder: Path) -> None:
    world, played = await _played(folder, SEED, SECONDS)
    assert not world.judge.violations, f"seed {SEED}:\n{world.last_log}"
    assert played.total() > SECONDS / 4
    assert world.judge.counts["prepared"] > SECONDS / 4
    assert world.judge.counts["released"] > SECONDS / 8
