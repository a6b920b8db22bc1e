"""`EventReporter`: the `kdp.Reporter` that ``watch`` gets, which hands events from any thread to the loop.

The first event is taken at once, and those that follow together, every 50 ms. They wait in a queue of bounded length; a
thread that reports faster waits for room. So a backend that reports thousands of faults a second costs neither memory
nor the loop's time, and no event is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, cast, final

from ..errors import InvalidValueError
from ..model.text import plain_text

if TYPE_CHECKING:
    from .publisher import DiscoveryPublisher, Report

LONGEST_KIND = 63
"""Characters of a fault's kind that are kept."""

MOST_WAITING: Final = 500
"""Events that wait for the loop: it takes them in a few milliseconds."""

PAUSE: Final = 0.05
"""Seconds between two takings: the kubelet is sent a list as seldom."""

_LOOK_PAUSE: Final = 1.0
"""Seconds for which a thread waits for room before it looks whether the backend is being closed."""


@final
class EventReporter:
    """The `kdp.Reporter` of one opening, which makes its calls in the running loop; after it calls change nothing."""

    def __init__(self, publisher: DiscoveryPublisher, rescan: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._publisher = publisher
        self._rescan = rescan
        self.stopping = threading.Event()
        self._waiting: queue.Queue[Report] = queue.Queue(MOST_WAITING)
        self._taken_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.get_ident()

    def rescan(self) -> None:
        """Discover soon."""
        self._send(self._rescan)

    def fault(self, ids_or_unit: str | Iterable[str], reason: str, *, kind: str = "fault") -> None:
        """Set a condition."""
        ids, kind = _names(ids_or_unit), _kind(kind)
        text = plain_text(reason, "the reason of Reporter.fault")
        if not text:
            raise InvalidValueError("fault(..., ''): the reason must say what is wrong; for example 'XID 79'")
        self._queue((ids, text, kind))

    def clear(self, ids_or_unit: str | Iterable[str], *, kind: str = "fault") -> None:
        """Take a condition back."""
        ids, kind = _names(ids_or_unit), _kind(kind)
        self._queue((ids, None, kind))

    def _queue(self, report: Report) -> None:
        is_loop = threading.get_ident() == self._thread
        while not self.stopping.is_set():
            try:
                self._waiting.put(report, block=not is_loop, timeout=_LOOK_PAUSE)
            except queue.Full:
                if is_loop:
                    self._take()  # it cannot wait for itself
                continue
            self._send(self._wake)
            return

    def _wake(self) -> None:
        """Take what waits, now or when the pause is over."""
        pause = self._taken_at + PAUSE - self._loop.time()
        if self._timer is None and pause > 0:
            self._timer = self._loop.call_later(pause, self._take)
        elif self._timer is None:
            self._take()

    def _take(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        reports: list[Report] = []
        with contextlib.suppress(queue.Empty):
            while len(reports) < MOST_WAITING:
                reports.append(self._waiting.get_nowait())
        if reports:
            self._taken_at = self._loop.time()
            self._publisher.report(reports)

    def _send(self, call: Callable[[], None]) -> None:
        if not self.stopping.is_set():
            with contextlib.suppress(RuntimeError):  # the loop is closed: a thread that outlived the plugin
                self._loop.call_soon_threadsafe(call)


def _names(ids_or_unit: object) -> tuple[str, ...]:
    """Return the ids, each as text: what is none names no device, and the others still count."""
    if isinstance(ids_or_unit, Iterable) and not isinstance(ids_or_unit, (str, bytes)):
        ids = cast("Iterable[object]", ids_or_unit)
        return tuple(plain_text(each, "an id that a Reporter is given") for each in ids)
    return (plain_text(ids_or_unit, "an id that a Reporter is given"),)


def _kind(kind: object) -> str:
    return plain_text(kind, "the kind that a Reporter is given", most=LONGEST_KIND)
