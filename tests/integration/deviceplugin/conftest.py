"""A simulated kubelet of every profile, and blocking calls that end with their test."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from kdp.testing import SimulatedKubelet

from .helpers import PROFILES, Block


@pytest.fixture(params=PROFILES)
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def kubelet(profile: str) -> AsyncIterator[SimulatedKubelet]:
    async with SimulatedKubelet(profile=profile, seed=11, watcher_period=0.05) as simulated:
        yield simulated


@pytest.fixture
async def k137() -> AsyncIterator[SimulatedKubelet]:
    """Where the versions do not differ: the newest one, which forgives least."""
    async with SimulatedKubelet(profile="k137", seed=11, watcher_period=0.05) as simulated:
        yield simulated


@pytest.fixture
def block() -> Iterator[Callable[[], Block]]:
    """Make blocking calls; all of them return at the end."""
    made: list[Block] = []

    def make() -> Block:
        made.append(Block())
        return made[-1]

    yield make
    for one in made:
        one.release()


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kdp")
