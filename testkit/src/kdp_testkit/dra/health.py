"""What the kubelet believes of the devices' health: the health info cache. No I/O and no clock of its own.

Modelled after ``k8s.io/kubernetes`` ``pkg/kubelet/cm/dra/healthinfo.go``: the kubelet stamps its own time of receipt, a
device that is not reported within its timeout reads Unknown, and the end of a stream clears its driver's devices. What
is known is written to a file, so that it outlives the kubelet until the driver's new stream tells more.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

HEALTH_NAME: Final = "dra_health_state"

DEFAULT_TIMEOUT: Final = 30.0
MAX_DEVICES: Final = 16_384
MAX_MESSAGE_BYTES: Final = 1024
_CUT = MAX_MESSAGE_BYTES - 3

DeviceKey = tuple[str, str]
"""Pool and device."""


@attrs.frozen(kw_only=True)
class DeviceReport:
    """One device of a report.

    Attributes:
        pool: Its pool.
        device: Its name.
        health: ``Healthy``, ``Unhealthy`` or ``Unknown``.
        message: Why.
        timeout: Seconds for which it holds; 0 or less: the default.
    """

    pool: str
    device: str
    health: str
    message: str = ""
    timeout: float = 0.0


@attrs.frozen
class _Known:
    report: DeviceReport
    received: float


class HealthCache:
    """What a kubelet has been told.

    Args:
        says_more: Whether timeouts and messages of devices count (since 1.35 and 1.36).
        has_limit: Whether there is a limit of devices, and those that reports leave out are dropped (1.37).
    """

    def __init__(self, *, says_more: bool, has_limit: bool) -> None:
        self._says_more = says_more
        self._has_limit = has_limit
        self._drivers: dict[str, dict[DeviceKey, _Known]] = {}

    def report(self, driver: str, devices: Iterable[DeviceReport], now: float) -> list[DeviceKey]:
        """Take a report, and return whose health has changed by it."""
        known = self._drivers.setdefault(driver, {})
        reported: set[DeviceKey] = set()
        changed: list[DeviceKey] = []
        for device in devices:
            report = self._normal(device)
            key = report.pool, report.device
            reported.add(key)
            before = known.get(key)
            if before is None and self._has_limit and len(known) >= MAX_DEVICES:
                continue
            if before is None or before.report != report:
                changed.append(key)
            known[key] = _Known(report, now)
        for key, old in list(known.items()):
            if key not in reported and now - old.received > old.report.timeout:
                if old.report.health != "Unknown":
                    changed.append(key)
                if self._has_limit:
                    del known[key]
                else:
                    known[key] = _Known(attrs.evolve(old.report, health="Unknown", message=""), now)
        return changed

    def load(self, text: str, *, now: float, wall: float) -> None:
        """Take what the kubelet before has written, at a time of both clocks; what cannot be read counts as nothing."""
        try:
            self._drivers = {
                driver: {(each["PoolName"], each["DeviceName"]): _known(each, now - wall) for each in devices.values()}
                for driver, devices in ((name, state["Devices"]) for name, state in json.loads(text).items())
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            self._drivers = {}

    def to_json(self, *, now: float, wall: float) -> str:
        """Return what is written, at a time of both clocks: the layout is the kubelet's."""
        return json.dumps(
            {
                driver: {"Devices": {"/".join(key): self._state(each, wall - now) for key, each in known.items()}}
                for driver, known in self._drivers.items()
            }
        )

    def _state(self, known: _Known, offset: float) -> dict[str, Any]:
        report = known.report
        state: dict[str, Any] = {
            "PoolName": report.pool,
            "DeviceName": report.device,
            "Health": report.health,
            "LastUpdated": datetime.fromtimestamp(known.received + offset, UTC).isoformat(),
        }
        if self._says_more:
            state |= {"HealthCheckTimeout": int(report.timeout * 1e9), "Message": report.message}
        return state

    def clear(self, driver: str) -> None:
        """Forget a driver: its stream has ended, whichever of its instances that was of."""
        self._drivers.pop(driver, None)

    def health(self, driver: str, pool: str, device: str, now: float) -> tuple[str, str]:
        """Return a device's health and the message with it."""
        known = self._drivers.get(driver, {}).get((pool, device))
        if known is None or now - known.received > known.report.timeout:
            return "Unknown", ""
        return known.report.health, known.report.message

    def _normal(self, device: DeviceReport) -> DeviceReport:
        message = device.message.encode() if self._says_more else b""
        if len(message) > MAX_MESSAGE_BYTES:
            # The kubelet cuts bytes, not characters.
            message = message[:_CUT] + b"..."
        timeout = device.timeout if self._says_more and device.timeout > 0 else DEFAULT_TIMEOUT
        return attrs.evolve(device, message=message.decode(errors="replace"), timeout=timeout)


def _known(state: dict[str, Any], offset: float) -> _Known:
    timeout = state.get("HealthCheckTimeout", 0) / 1e9 or DEFAULT_TIMEOUT
    report = DeviceReport(
        pool=state["PoolName"],
        device=state["DeviceName"],
        health=state["Health"],
        message=state.get("Message", ""),
        timeout=timeout,
    )
    return _Known(report, datetime.fromisoformat(state["LastUpdated"]).timestamp() + offset)
