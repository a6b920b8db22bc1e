"""Log lines of one resource: what changed in its device table, and in its connection to the kubelet."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .inventory import Change, Snapshot

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
class StateLog:
    """Logs a change of state once; what goes on while it lasts is not news."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._is_connected = False
        self._logged: set[str] = set()

    def connected(self, snapshot: Snapshot | None) -> None:
        """The kubelet holds a stream."""
        if not self._is_connected:
            self._is_connected, self._logged = True, set()
            devices = snapshot.devices.values() if snapshot is not None else ()
            healthy = sum(device.health.is_healthy for device in devices)
            what = f"connected to the kubelet, devices: {len(devices)}, healthy: {healthy}"
            logger.info("%s: %s", self._resource, what, extra={"resource": self._resource})

    def lost(self, reason: str) -> None:
        """The kubelet holds none."""
        if reason not in self._logged:
            self._is_connected = False
            self.warn(f"not registered: {reason}; trying again", key=reason)

    def warn(self, text: str, *, key: str | None = None) -> None:
        """Log a warning, once while the state lasts."""
        if (key or text) not in self._logged:
            self._logged.add(key or text)
            logger.warning("%s: %s", self._resource, text, extra={"resource": self._resource})


@final
class ChangeLog:
    """Logs each device whose health changed or that left the list; a new, healthy device is no news.

    A device that changes all the time has `MOST_OF_DEVICE` lines in a period, and all devices have `MOST_OF_RESOURCE`.
    What is not shown is counted, and at the period's end its last state is told. asyncio only; use it from one loop.
    """

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._ends_at = float("-inf")
        self._lines = 0
        self._lines_of: dict[str, int] = {}
        self._hidden: dict[str, tuple[int, str, int]] = {}
        self._end: asyncio.TimerHandle | None = None

    def changed(self, change: Change) -> tuple[str, ...]:
        """Log a change; returns the devices that became Unhealthy and are shown."""
        now = time.monotonic()
        if now >= self._ends_at:
            self._begin(now)
        news: dict[tuple[int, str], list[str]] = {}
        for transition in change.transitions:
            device, health = transition.device, transition.device.health
            if transition.before is not None or not health.is_healthy:
                level = logging.INFO if health.is_healthy else logging.WARNING
                news.setdefault((level, f"now {health}"), []).append(device.id)
        if change.removed:
            news[logging.INFO, "no longer listed"] = list(change.removed)
        shown = {key: self._to_show(ids, *key) for key, ids in news.items()}
        for (level, what), ids in shown.items():
            self._log(level, ids, what)
        if change.topology_lost_by is not None:
            logger.warning(
                "%s: device %s has no NUMA node, so none is told for the whole resource",
                self._resource,
                change.topology_lost_by,
            )
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
        if len(ids) > _MOST_LINES:
            what = f"{len(ids)} devices are {what}: {', '.join(ids[:_MOST_LINES])}, ..."
            self._lines += 1
            logger.log(level, "%s: %s", self._resource, what, extra={"resource": self._resource})
            return
        for device_id in ids:
            extra = {"resource": self._resource, "device_id": device_id}
            self._lines += 1
            logger.log(level, "%s: device %s is %s", self._resource, device_id, what, extra=extra)
