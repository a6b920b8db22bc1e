"""What every unit test keeps to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest

_HERE: Final = Path(__file__).parent
_PATIENT: Final = {"test_mutants.py", "test_publisher.py", "test_probes.py"}
"""Tests that wait for pauses and deadlines in real time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make quick` leaves out besides tests that draw: modules that start processes or wait."""
    for item in items:
        if _HERE not in item.path.parents:
            continue
        module = item.getparent(pytest.Module)
        if item.path.name in _PATIENT or hasattr(getattr(module, "obj", None), "subprocess"):
            item.add_marker("thorough")


@pytest.fixture(autouse=True)
def keeps_the_signals() -> Iterator[None]:
    """No test takes over the signals of the process that runs the others: `kdp run` belongs into one of its own."""
    yield
    assert "kdp-signals" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def without_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[list[str]]]:
    """Refuse to start threads in its context, like a container's limit of processes, and give the refused names."""

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
