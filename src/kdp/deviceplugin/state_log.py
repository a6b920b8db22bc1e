"""Log lines of one resource about its connection to the kubelet."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from ..concurrency.history import History
    from .inventory import ListSnapshot

logger = logging.getLogger(__name__)


@final
class StateLog:
    """Logs a change of state once; what goes on while it lasts is not news.

    Args:
        resource: The resource.
        history: Takes the changes, too; None: nobody reads it.
    """

    def __init__(self, resource: str, history: History | None = None) -> None:
        self._resource = resource
        self._history = history
        self._is_connected = False
        self._logged: set[str] = set()

    def connected(self, snapshot: ListSnapshot | None) -> None:
        """The kubelet holds a stream."""
        if not self._is_connected:
            self._is_connected, self._logged = True, set()
            devices = snapshot.devices.values() if snapshot is not None else ()
            healthy = sum(device.health.is_healthy for device in devices)
            counted = f"devices: {len(devices)}, healthy: {healthy}"
            what = f"connected to the kubelet, {counted}"
            logger.info("%s: %s", self._resource, what, extra={"resource": self._resource})
            if self._history is not None:
                self._history.add("registered", self._resource, counted)

    def lost(self, reason: str) -> None:
        """The kubelet holds none."""
        if reason not in self._logged:
            self._is_connected = False
            if self._history is not None:
                self._history.add("disconnected", self._resource, reason)
            self.warn(f"not registered: {reason}; trying again", key=reason)

    def warn(self, text: str, *, key: str | None = None) -> None:
        """Log a warning, once while the state lasts."""
        if (key or text) not in self._logged:
            self._logged.add(key or text)
            logger.warning("%s: %s", self._resource, text, extra={"resource": self._resource})
