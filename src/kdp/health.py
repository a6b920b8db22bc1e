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
        self._judged: dict[str, tuple[Device, str, Device]] = {}

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
        """Return the devices with all conditions applied. What has not changed stays the same object.

        Args:
            devices: As discovered.
            extra: Further reasons by device id (a node that is gone, a discovery that is stale).
        """
        affected = self._faults.keys() | extra.keys()
        before, self._judged = self._judged, {}
        if not affected:
            return tuple(devices)
        return tuple(
            self._judge(device, extra.get(device.id), before)
            if device.id in affected or device.unit in affected
            else device
            for device in devices
        )

    def _judge(self, device: Device, extra: str | None, before: Mapping[str, tuple[Device, str, Device]]) -> Device:
        reasons = dict.fromkeys(
            reason
            for reason in (
                device.health.reason,
                extra,
                *self._faults.get(device.unit, {}).values(),
                *self._faults.get(device.id, {}).values(),
            )
            if reason is not None
        )
        text = "; ".join(reasons)
        source, known, judged = before.get(device.id, (None, "", device))
        if source is not device or known != text:
            judged = device if text == device.health.reason else attrs.evolve(device, health=Health.unhealthy(text))
        self._judged[device.id] = (device, text, judged)
        return judged
