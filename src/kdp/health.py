"""Which devices are healthy, and why not: named conditions on units and devices. Sans-IO.

Discovery owns one condition (what it says of a device), the node check another, `Reporter.fault` the others by kind.
A device is healthy only while none is faulty: so the next poll never heals a fault that was pushed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .devices import Device, Health

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Conditions"]


class Conditions:
    """The faults that are in force, by unit or device id and by kind."""

    def __init__(self) -> None:
        self._faults: dict[str, dict[str, str]] = {}

    def fault(self, ids: Iterable[str], reason: str, *, kind: str) -> None:
        """Set a condition on units or device ids; known or not, it shows once such a device is there."""
        for name in ids:
            self._faults.setdefault(name, {})[kind] = reason

    def clear(self, ids: Iterable[str], *, kind: str) -> None:
        """Take a condition back; one that was never set does no harm."""
        for name in ids:
            kinds = self._faults.get(name, {})
            kinds.pop(kind, None)
            if not kinds:
                self._faults.pop(name, None)

    def judge(self, devices: Iterable[Device], extra: Mapping[str, str]) -> tuple[Device, ...]:
        """Return the devices with all conditions applied.

        Args:
            devices: As discovered.
            extra: Further reasons by device id (a node that is gone, a discovery that is stale).
        """
        if not self._faults and not extra:
            return tuple(devices)
        affected = self._faults.keys() | extra.keys()
        return tuple(
            self._judge(device, extra) if device.id in affected or device.unit in affected else device
            for device in devices
        )

    def _judge(self, device: Device, extra: Mapping[str, str]) -> Device:
        reasons: dict[str, None] = {}
        if device.health.reason is not None:
            reasons[device.health.reason] = None
        if device.id in extra:
            reasons[extra[device.id]] = None
        for name in {device.unit: None, device.id: None}:
            reasons.update(dict.fromkeys(self._faults.get(name, {}).values()))
        if len(reasons) == (device.health.reason is not None):
            return device
        return attrs.evolve(device, health=Health.unhealthy("; ".join(reasons)))
