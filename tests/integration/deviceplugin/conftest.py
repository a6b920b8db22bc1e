"""A simulated kubelet, and blocking calls that end with their test."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from kdp.testing import DEFAULT_PROFILE, SimulatedKubelet

from .helpers import Block


@pytest.fixture
def profile() -> str:
    """The newest version, which forgives least; a test that needs another one says so."""
    return DEFAULT_PROFILE


@pytest.fixture
async def kubelet(profile: str) -> AsyncIterator[SimulatedKubelet]:
    async with SimulatedKubelet(profile=profile, seed=11, watcher_period=0.05) as simulated:
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
