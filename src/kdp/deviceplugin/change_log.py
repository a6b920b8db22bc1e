"""Log lines of one resource: what changed in its device table, and in its connection to the kubelet."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model.devices import Health
    from .inventory import Change, Snapshot

logger = logging.getLogger(__name__)

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


def log_change(resource: str, change: Change) -> None:
    """Log each device whose health changed or that left the list; a new, healthy device is no news."""
    by_health: dict[Health, list[str]] = {}
    for transition in change.transitions:
        device = transition.device
        if transition.before is not None or not device.health.is_healthy:
            by_health.setdefault(device.health, []).append(device.id)
    for health, ids in by_health.items():
        _log_devices(resource, logging.INFO if health.is_healthy else logging.WARNING, ids, f"now {health}")
    _log_devices(resource, logging.INFO, change.removed, "no longer listed")
    if change.topology_lost_by is not None:
        logger.warning(
            "%s: device %s has no NUMA node, so none is told for the whole resource", resource, change.topology_lost_by
        )


def _log_devices(resource: str, level: int, ids: Sequence[str], what: str) -> None:
    """Log one line for each device, or one for all where many changed together."""
    if len(ids) > _MOST_LINES:
        what = f"{len(ids)} devices are {what}: {', '.join(ids[:_MOST_LINES])}, ..."
        logger.log(level, "%s: %s", resource, what, extra={"resource": resource})
        return
    for device_id in ids:
        extra = {"resource": resource, "device_id": device_id}
        logger.log(level, "%s: device %s is %s", resource, device_id, what, extra=extra)
