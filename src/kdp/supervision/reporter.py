"""`EventReporter`: the `kdp.Reporter` that ``watch`` gets, which hands events from any thread to the loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, final

from ..errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .publisher import DiscoveryPublisher


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
        ids = _names(ids_or_unit)
        if not reason:
            raise InvalidValueError("fault(..., ''): the reason must say what is wrong; valid is 'XID 79'")
        self._send(lambda: self._publisher.fault(ids, reason, kind=kind))

    def clear(self, ids_or_unit: str | Iterable[str], *, kind: str = "fault") -> None:
        """Take a condition back."""
        ids = _names(ids_or_unit)
        self._send(lambda: self._publisher.clear(ids, kind=kind))

    def _send(self, call: Callable[[], None]) -> None:
        if not self._stopping.is_set():
            with contextlib.suppress(RuntimeError):  # the loop is closed: a thread that outlived the plugin
                self._loop.call_soon_threadsafe(call)


def _names(ids_or_unit: str | Iterable[str]) -> tuple[str, ...]:
    return (ids_or_unit,) if isinstance(ids_or_unit, str) else tuple(ids_or_unit)
