"""Waiting for what tells nobody that it has changed: a plain list, a file, a log, another process."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio

from kdp_testkit.patience import PATIENCE

__all__ = ["until"]


async def until(condition: Callable[[], object], what: str = "a condition") -> None:
    """Wait until something is so; what it is names the failure."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not so within {PATIENCE:g} s: {what}"
        await anyio.sleep(0.005)
