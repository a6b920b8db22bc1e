"""`SharedState`: what the supervisors of one backend object hand on to each other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..concurrency.threads import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..model.backend import DeviceBackend


class Lane:
    """One hook's calls: its lock, and for a ``def`` hook its thread."""

    def __init__(self, name: str) -> None:
        self.worker = Worker(name)
        self.lock = asyncio.Lock()
        self.last_failure = ""

    def end(self) -> None:
        """Let the thread end when it is free."""
        self.worker.end()
        self.last_failure = ""


class SharedState:
    """State shared by all supervisors of one backend on one event loop, such as those before and after a reload.

    A hook that hangs outlives its caller, and the next supervisor must know. So whoever replaces a supervisor of a
    backend hands this on to its successor.

    Attributes:
        lanes: The calls of each hook.
        is_open: Whether ``open`` has returned and ``close`` was not called since.
        close_until: Until when ``close`` may take, on `time.monotonic`'s clock, if it is running.
        holders: Those who need it open.
        returned: Called in the event loop each time a hook has returned; must not raise.
    """

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.is_open = False
        self.close_until = 0.0
        self.holders: set[object] = set()
        self.returned: Callable[[], object] = lambda: None


def states_for(backends: Sequence[DeviceBackend], handed_on: Sequence[SharedState] = ()) -> tuple[SharedState, ...]:
    """Return one state for each backend: what was handed on, or new ones if nothing was."""
    return tuple(handed_on) or tuple(SharedState() for _ in backends)
