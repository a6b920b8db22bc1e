"""Log lines about the devices of one resource or driver: whose health changed, and which left the list."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, final

import attrs

from ..model.devices import Device, Health
from ..startup import shown
from .health import is_of_quarantine, is_withheld

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..concurrency.history import History, Kind

logger = logging.getLogger(__name__)

PERIOD: Final = 10.0
"""Seconds after which a device that changes all the time is logged again."""

MOST_OF_DEVICE: Final = 5
"""Lines of one device in a period: a fault, its end, and both once more are shown at once."""

MOST_OF_RESOURCE: Final = 200
"""Lines of all devices of a resource in a period."""

_MOST_LINES = 5
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

    A device that changes all the time has `MOST_OF_DEVICE` lines in a period, and all devices have `MOST_OF_RESOURCE`.
    What is not shown is counted, and at the period's end its last state is told. asyncio only; use it from one loop.

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
        self._lines_of: dict[str, int] = {}
        self._hidden: dict[str, tuple[int, str, int]] = {}
        self._end: asyncio.TimerHandle | None = None

    def changed(self, transitions: Iterable[Transition], removed: Sequence[str] = ()) -> tuple[str, ...]:
        """Log a change; returns the devices that became Unhealthy and are shown.

        Args:
            transitions: New devices and changes of health.
            removed: Ids that have left the list.
        """
        now = time.monotonic()
        if now >= self._ends_at:
            self._begin(now)
        news: dict[tuple[int, str], list[str]] = {}
        for transition in transitions:
            device, health = transition.device, transition.device.health
            if transition.before is not None and is_of_quarantine(transition.before) and is_of_quarantine(health):
                continue  # a device is put there because it flaps: each further flap is no news
            if transition.before is not None or not health.is_healthy:
                level = logging.INFO if health.is_healthy or is_withheld(health) else logging.WARNING
                news.setdefault((level, f"now {health}"), []).append(device.id)
        if removed:
            news[logging.INFO, self._gone] = list(removed)
        shown = {key: self._to_show(ids, *key) for key, ids in news.items()}
        for (level, what), ids in shown.items():
            self._log(level, ids, what)
        if self._hidden and self._end is None:
            self._end = asyncio.get_running_loop().call_later(self._ends_at - now, self.end)
        return tuple(i for (level, _), ids in shown.items() if level == logging.WARNING for i in ids)

    def end(self) -> None:
        """End the period: tell the last state of what was not shown. Idempotent."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
        hidden, self._hidden = self._hidden, {}
        self._begin(time.monotonic())
        by_state: dict[tuple[int, str], list[str]] = {}
        for device_id, (level, what, _) in hidden.items():
            by_state.setdefault((level, what), []).append(device_id)
        for (level, what), ids in list(by_state.items())[:_MOST_LINES]:
            count = sum(hidden[i][2] for i in ids)
            self._log(level, ids, f"{what}; changes that were not shown: {count}")
        rest = [i for ids in list(by_state.values())[_MOST_LINES:] for i in ids]
        if rest:
            text = f"{len(rest)} more devices changed {sum(hidden[i][2] for i in rest)} times, which is not shown"
            logger.warning("%s: %s", self._resource, text, extra={"resource": self._resource})

    def _begin(self, now: float) -> None:
        self._ends_at, self._lines = now + PERIOD, 0
        self._lines_of.clear()

    def _to_show(self, ids: Sequence[str], level: int, what: str) -> list[str]:
        """Return the ids that may be shown; note the others."""
        most = MOST_OF_DEVICE if self._lines < MOST_OF_RESOURCE else 0
        shown = [i for i in ids if self._lines_of.get(i, 0) < most and i not in self._hidden]
        for device_id in shown:
            self._lines_of[device_id] = self._lines_of.get(device_id, 0) + 1
        for device_id in set(ids).difference(shown):
            count = self._hidden[device_id][2] if device_id in self._hidden else 0
            self._hidden[device_id] = level, what, count + 1
        return shown

    def _log(self, level: int, ids: Sequence[str], what: str) -> None:
        """Log one line for each device, or one for all where many changed together."""
        if ids:
            recovered: Kind = "gone" if what.startswith(self._gone) else "recovered"
            if self._history is not None:
                self._history.add("fault" if level == logging.WARNING else recovered, self._resource, what, ids)
        if len(ids) > _MOST_LINES:
            what = f"{len(ids)} devices are {what}: {', '.join(ids[:_MOST_LINES])}, ..."
            self._lines += 1
            logger.log(level, "%s: %s", self._resource, what, extra={"resource": self._resource})
            return
        for device_id in ids:
            extra = {"resource": self._resource, "device_id": device_id}
            self._lines += 1
            logger.log(level, "%s: device %s is %s", self._resource, device_id, what, extra=extra)
