"""`SharedState`: what the supervisors of one backend object hand on to each other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ..concurrency.counts import Durations, Names, Tally
from ..concurrency.threads import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model.backend import DeviceBackend
    from .hook_note import HookNote


class Lane:
    """One hook's calls: its lock, and for a ``def`` hook its thread."""

    def __init__(self, name: str) -> None:
        self.worker = Worker(name)
        self.lock = asyncio.Lock()
        self.last_failure = ""
        self.last_stall = ""
        """Where a call kept the event loop last."""
        self.has_returned_something = False
        """Whether it has returned something although nobody reads it."""
        self.is_hanging = False
        """Whether a call is running whose caller was answered at its deadline."""
        self.hangs_at = ""
        """The place of the call's thread at the caller's deadline."""
        self.running: str | None = None
        """Whose call is running, as its caller has said."""
        self.done_late: set[str] = set()
        """The work of such calls that have ended well since, and of calls whose success could not be saved."""

    def end(self) -> None:
        """Let the thread end when it is free."""
        self.worker.end()
        self.last_failure = ""


MOST_RESOURCES: Final = 64
MOST_KINDS: Final = 32


class BackendCounts:
    """What was counted of a backend's hooks, which are few, and of its devices.

    Attributes:
        seconds: The time from a call to its answer, by hook; an earlier call that is waited for counts. Not of
            ``watch``, which runs for ever.
        failures: Calls that failed, by hook and reason: ``error``, ``deadline``, ``not_ready``, or ``refused``.
        transitions: Changes of devices' states, by resource, new state, and kind of fault.
    """

    def __init__(self) -> None:
        self.seconds = Durations()
        self.failures = Tally()
        self.transitions = Tally()
        self._resources = Names(MOST_RESOURCES)
        self._kinds = Names(MOST_KINDS)

    def changed(self, resource: str, state: str, kinds: Sequence[str]) -> None:
        """Count a device whose state is another one now; of several kinds of faults the first counts."""
        kind = self._kinds.of(kinds[0]) if kinds else "none"
        self.transitions.add(self._resources.of(resource), state, kind)


class SharedState:
    """State shared by all supervisors of one backend on one event loop, such as those before and after a reload.

    A hook that hangs outlives its caller, and the next supervisor must know. So a caller that replaces a supervisor of
    a backend hands this on to its successor.

    Attributes:
        lanes: The calls of each hook.
        is_open: Whether ``open`` has returned and ``close`` was not called since.
        close_until: Until when ``close`` may take, on `time.monotonic`'s clock, if it is running.
        holders: Those who need it open.
        counts: What was counted of the hooks and devices.
        note: The note of the hooks that run; `None` if there is none.
    """

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.is_open = False
        self.close_until = 0.0
        self.holders: set[object] = set()
        self.counts = BackendCounts()
        self.note: HookNote | None = None

    @property
    def hanging(self) -> int:
        """Number of hooks that have not returned although their callers were answered at the deadline."""
        return sum(lane.is_hanging for lane in self.lanes.values())


def states_for(backends: Sequence[DeviceBackend], handed_on: Sequence[SharedState] = ()) -> tuple[SharedState, ...]:
    """Return one state for each backend: what was handed on, or new ones if nothing was."""
    return tuple(handed_on) or tuple(SharedState() for _ in backends)
