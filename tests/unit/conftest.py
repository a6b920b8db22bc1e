"""What every unit test keeps to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest


@pytest.fixture(autouse=True)
def keeps_the_signals() -> Iterator[None]:
    """No test takes over the signals of the process that runs the others: `kdp run` belongs into one of its own."""
    yield
    assert "kdp-signals" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def without_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[list[str]]]:
    """Within its context no thread can be started, as at a container's limit of processes; it gives the names of those refused."""

    @contextmanager
    def without() -> Generator[list[str]]:
        refused: list[str] = []

        def refuse(thread: threading.Thread) -> None:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            yield refused

    return without
