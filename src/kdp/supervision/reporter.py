"""`EventReporter`: the `kdp.Reporter` that ``watch`` gets, which hands events from any thread to the loop.

The first event is handed over at once. Those that come faster than the loop takes them wait in a list of bounded
length, in their order, and are taken together; a thread that reports faster still waits. So a backend that reports
thousands of faults a second costs neither memory nor the loop's time, and no event is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
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
"""Seconds between two takings of many events: the kubelet is sent a list as seldom."""

_MANY: Final = 8

PATIENCE: Final = 5.0
"""Seconds for which a thread waits for room, as while a hook blocks the loop."""


@final
class EventReporter:
    """The `kdp.Reporter` of one opening, which makes its calls in the running loop; after it calls change nothing."""

    def __init__(self, publisher: DiscoveryPublisher, rescan: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._publisher = publisher
        self._rescan = rescan
        self._stopping = threading.Event()
        self._room = threading.Condition()
        self._waiting: list[Report] = []
        self._is_due = False
        self._thread = threading.get_ident()

    @property
    def stopping(self) -> threading.Event:
        """See `kdp.Reporter`, as for the methods."""
        return self._stopping

    def rescan(self) -> None:
        """Discover soon."""
        self._send(self._rescan)

    def fault(self, ids_or_unit: str | Iterable[str], reason: str, *, kind: str = "fault") -> None:
        """Set a condition."""
        ids, kind = _names(ids_or_unit), _kind(kind)
        text = plain_text(reason, "the reason of Reporter.fault")
        if not text:
            raise InvalidValueError("fault(..., ''): the reason must say what is wrong; valid is 'XID 79'")
        self._queue((ids, text, kind))

    def clear(self, ids_or_unit: str | Iterable[str], *, kind: str = "fault") -> None:
        """Take a condition back."""
        ids, kind = _names(ids_or_unit), _kind(kind)
        self._queue((ids, None, kind))

    def _queue(self, report: Report) -> None:
        if self._stopping.is_set():
            return
        is_loop = threading.get_ident() == self._thread
        with self._room:
            if len(self._waiting) >= MOST_WAITING and not is_loop:
                self._room.wait_for(lambda: len(self._waiting) < MOST_WAITING or self._stopping.is_set(), PATIENCE)
            self._waiting.append(report)
            if not self._is_due:
                self._is_due = True
                self._send(self._take)
        if is_loop and len(self._waiting) >= MOST_WAITING:
            self._hand_over()  # it cannot wait for itself

    def _take(self) -> None:
        """Take what waits; after many events the loop has time for others."""
        if self._hand_over() >= _MANY:
            self._loop.call_later(PAUSE, self._take)
            return
        with self._room:
            self._is_due = bool(self._waiting)
            if self._is_due:
                self._loop.call_soon(self._take)

    def _hand_over(self) -> int:
        with self._room:
            reports, self._waiting = self._waiting, []
        if reports:
            self._publisher.report(reports)
        with self._room:
            self._room.notify_all()
        return len(reports)

    def _send(self, call: Callable[[], None]) -> None:
        if not self._stopping.is_set():
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
