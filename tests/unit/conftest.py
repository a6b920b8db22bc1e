"""What every unit test keeps to."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def keeps_the_signals() -> Iterator[None]:
    """No test takes over the signals of the process that runs the others: `kdp run` belongs into one of its own."""
    yield
    assert "kdp-signals" not in {thread.name for thread in threading.enumerate()}
