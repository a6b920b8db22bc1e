"""Chaos of a DRA driver, and the proof that it finds mistakes. ``make chaos`` plays for longer, with a new seed."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from tests.chaos.mutants import source_of
from tests.chaos.play import rounds

from .mutants import MUTANTS
from .operations import WEIGHTS
from .world import DraWorld, node_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECONDS = float(os.environ.get("KDP_CHAOS", "40"))
SEED = 1
MUTANT_SECONDS = 30.0
"""In which a mistake should be found, or at the end that follows."""

SEEDS = (1, 2, 3, 4, 5, 6)
"""Which are played until a mistake is found; most are found by the first one."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("d")  # short: a socket's whole path has 107 bytes


async def _played(directory: Path, seed: int, seconds: float, **environment: str) -> tuple[DraWorld, Counter[str]]:
    async with node_of(directory, seed, environment) as world:
        return world, await rounds(world, WEIGHTS, seconds, print)


async def test_no_rule_is_broken(folder: Path) -> None:
    world, played = await _played(folder, SEED, SECONDS)
    assert not world.judge.violations, f"seed {SEED}:\n{world.last_log}"
    assert played.total() > SECONDS / 2
    assert world.judge.counts["prepared"] > SECONDS / 4
    assert world.judge.counts["released"] > SECONDS / 8


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_mistake_is_found(name: str, folder: Path) -> None:
    source = source_of(MUTANTS[name], folder / "source")
    found: list[str] = []
    for seed in SEEDS:
        world, _ = await _played(folder / str(seed), seed, MUTANT_SECONDS, PYTHONPATH=f"{source}:{os.getcwd()}")
        found += world.judge.violations
        if any(text.startswith(f"rule {rule}:") for rule in MUTANTS[name].rules for text in found):
            return
    pytest.fail(f"none of the rules {MUTANTS[name].rules} was broken, but {found}")
