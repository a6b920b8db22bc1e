"""A simulated kubelet, and blocking calls that end with their test."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest

from kdp.storage.journal import Journal
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


@pytest.fixture
def is_full(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is set, no allocation can be saved."""
    write, event = Journal.write, threading.Event()

    def full(journal: Journal, changes: Mapping[str, Mapping[str, Any] | None]) -> None:
        if event.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(journal, changes)

    monkeypatch.setattr(Journal, "write", full)
    return event
