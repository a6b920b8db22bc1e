"""The taint of an unhealthy device: its key, and the devices that have it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from ..model.claims import Taint
from ..supervision.health import UNSPECIFIED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..model.claims import TaintEffect
    from ..model.devices import Device
    from ..supervision.health import DeviceHealth


def health_key(driver: str) -> str:
    """Return the key of the taint that an unhealthy device has."""
    return f"{driver}/unhealthy"


def tainted(
    devices: Iterable[Device], driver: str, effect: TaintEffect | None, health: Mapping[str, DeviceHealth]
) -> tuple[Device, ...]:
    """Return the devices with a taint on those that are unhealthy. The taint's value is the kind of the fault.

    Args:
        devices: The devices.
        driver: The driver's name, of which the taint's key is made.
        effect: The taint's; None: there is none.
        health: How those devices are that are not simply healthy, by id.
    """
    if effect is None:
        return tuple(devices)
    key = health_key(driver)

    def taint(device: Device) -> Device:
        kind = health[device.id].kind if device.id in health else UNSPECIFIED
        return attrs.evolve(device, taints=(*device.taints, Taint(key=key, effect=effect, value=taint_value(kind))))

    return tuple(device if device.health.is_healthy else taint(device) for device in devices)


def taint_value(kind: str) -> str:
    """Return a kind of fault as a taint's value, which has the form of a label's; empty: nothing of it can stand."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", kind)[:63].strip("._-")
