"""`EventReporter`: the `kdp.Reporter` that ``watch`` gets, which hands events from any thread to the loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast, final

from ..errors import InvalidValueError
from ..model.text import plain_text

if TYPE_CHECKING:
    from .publisher import DiscoveryPublisher

LONGEST_KIND = 63
"""Characters of a fault's kind that are kept."""


@final
class EventReporter:
    """The `kdp.Reporter` of one opening, which makes its calls in the running loop; after it calls change nothing."""

    def __init__(self, publisher: DiscoveryPublisher, rescan: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._publisher = publisher
        self._rescan = rescan
        self._stopping = threading.Event()

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
        self._send(lambda: self._publisher.fault(ids, text, kind=kind))

    def clear(self, ids_or_unit: str | Iterable[str], *, kind: str = "fault") -> None:
        """Take a condition back."""
        ids, kind = _names(ids_or_unit), _kind(kind)
        self._send(lambda: self._publisher.clear(ids, kind=kind))

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
