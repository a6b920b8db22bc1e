"""Log lines about the devices of one resource or driver: whose health changed, and which left the list."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, final

import attrs

from ..model.devices import Device, Health
from ..startup import shown
from .conditions import QUARANTINE, is_withheld

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..concurrency.history import History, Kind

logger = logging.getLogger(__name__)

PERIOD: Final = 10.0
"""Seconds for which lines are counted."""

MOST_LINES: Final = 20
"""Lines of one resource in a period."""

_NAMED = 5
"""More devices than this that change together are told in one line."""


@final
@attrs.frozen(kw_only=True)
class Transition:
    """A device's health as others see it has changed; ``before`` None: the device is new."""

    __repr__ = shown

    device: Device
    before: Health | None


@final
class ChangeLog:
    """Logs each device whose health changed or that left the list; a new, healthy device is no news.

    Of a quarantine, the entry and the exit are logged, and no flap between them.

    A resource has `MOST_LINES` in a period. Of what comes then, the last state of each device is told at the period's
    end. asyncio only; use it from one loop.

    Args:
        resource: The resource or driver.
        gone: What is said of a device that has left the list.
        history: Takes what is logged, too; None: nobody reads it.
    """

    def __init__(self, resource: str, *, gone: str = "no longer listed", history: History | None = None) -> None:
        self._resource = resource
        self._history = history
        self._gone = gone
        self._ends_at = float("-inf")
        self._lines = 0
        self._hidden: dict[str, tuple[int, str]] = {}
        self._changes = 0
        self._end: asyncio.TimerHandle | None = None

    def changed(self, transitions: Iterable[Transition], removed: Sequence[str] = ()) -> tuple[str, ...]:
        """Log a change; returns the devices that became Unhealthy and are shown.

        Args:
            transitions: New devices and changes of health.
            removed: Ids that have left the list.
        """
        now = time.monotonic()
        if now >= self._ends_at:
            self.end()
            self._ends_at, self._lines = now + PERIOD, 0
        news: dict[tuple[int, str], list[str]] = {}
        for transition in transitions:
            device, health = transition.device, transition.device.health
            before = () if transition.before is None else transition.before.conditions
            if QUARANTINE.is_in(before) and QUARANTINE.is_in(health.conditions):
                continue  # a device is put there because it flaps: each further flap is no news
            if transition.before is not None or not health.is_healthy:
                level = logging.INFO if health.is_healthy or is_withheld(health.conditions) else logging.WARNING
                news.setdefault((level, f"now {health}"), []).append(device.id)
        if removed:
            news[logging.INFO, self._gone] = list(removed)
        shown: list[str] = []
        for (level, what), ids in news.items():
            if self._lines < MOST_LINES:
                self._log(level, ids, what)
                shown += ids if level == logging.WARNING else ()
            else:
                self._hidden.update(dict.fromkeys(ids, (level, what)))
                self._changes += len(ids)
        if self._hidden and self._end is None:
            self._end = asyncio.get_running_loop().call_later(self._ends_at - now, self.end)
        return tuple(shown)

    def end(self) -> None:
        """End the period: tell the last state of what was not shown. Idempotent."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if not self._hidden:
            return
        text = f"{self._changes} changes were not shown; this is how they ended"
        logger.warning("%s: %s", self._resource, text, extra={"resource": self._resource})
        by_state: dict[tuple[int, str], list[str]] = {}
        for device_id, state in self._hidden.items():
            by_state.setdefault(state, []).append(device_id)
        self._hidden, self._changes = {}, 0
        for (level, what), ids in list(by_state.items())[:MOST_LINES]:
            self._log(level, ids, what)
        self._ends_at = float("-inf")

    def _log(self, level: int, ids: Sequence[str], what: str) -> None:
        """Log one line for each device, or one for all where many changed together."""
        if ids:
            recovered: Kind = "gone" if what == self._gone else "recovered"
            if self._history is not None:
                self._history.add("fault" if level == logging.WARNING else recovered, self._resource, what, ids)
        if len(ids) > _NAMED:
            what = f"{len(ids)} devices are {what}: {', '.join(ids[:_NAMED])}, ..."
            self._lines += 1
            logger.log(level, "%s: %s", self._resource, what, extra={"resource": self._resource})
            return
        for device_id in ids:
            extra = {"resource": self._resource, "device_id": device_id}
            self._lines += 1
            logger.log(level, "%s: device %s is %s", self._resource, device_id, what, extra=extra)
