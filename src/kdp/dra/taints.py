"""The taint of an unhealthy device: its key, and the devices that have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..model.claims import Taint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..model.claims import TaintEffect
    from ..model.devices import Device


def health_key(driver: str) -> str:
    """Return the key of the taint that an unhealthy device has."""
    return f"{driver}/unhealthy"


def tainted(devices: Iterable[Device], driver: str, effect: TaintEffect | None) -> tuple[Device, ...]:
    """Return the devices with a taint on those that are unhealthy.

    Args:
        devices: The devices.
        driver: The driver's name, of which the taint's key is made.
        effect: The taint's; None: there is none.
    """
    if effect is None:
        return tuple(devices)
    taint = Taint(key=health_key(driver), effect=effect)
    return tuple(
        device if device.health.is_healthy else attrs.evolve(device, taints=(*device.taints, taint))
        for device in devices
    )
