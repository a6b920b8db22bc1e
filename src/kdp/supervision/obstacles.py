"""What an allocation needs, and what does not work: devices that no container could get are not offered.

The scheduler sends pods to each device that is offered. A controller replaces each pod that is refused, so an offer
that fails makes hundreds of dead pods. A device behind an obstacle is listed Unhealthy, with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

import attrs

from ..concurrency.observable import Observable
from ..model.devices import Health
from .health import DeviceHealth, HealthState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..model.devices import Device
    from .publisher import Discovery

LOOK_PAUSE: Final = 5.0
"""Seconds between two looks at what an allocation needs: at most so long after its cause has gone, an obstacle ends."""

KIND: Final = "obstacle"
"""The kind of fault that an obstacle is."""

Obstacle = Callable[["Device"], "str | None"]
"""Says why no container can get a device; None: one can."""


def without_blocked(devices: tuple[Device, ...], obstacle: Obstacle) -> tuple[Device, ...]:
    """Return the devices, those that no container can get as Unhealthy; the reason of an unhealthy one stays first."""
    return tuple([device if (why := obstacle(device)) is None else _blocked(device, why) for device in devices])


def blocked_health(devices: Iterable[Device], obstacle: Obstacle, *, since: float) -> Mapping[str, DeviceHealth]:
    """Return how those devices are that no container can get, by id."""
    blocked = (_blocked(device, why) for device in devices if (why := obstacle(device)) is not None)
    return {
        device.id: DeviceHealth(state=HealthState.UNHEALTHY, reason=device.health.reason, since=since, kinds=(KIND,))
        for device in blocked
    }


def _blocked(device: Device, why: str) -> Device:
    own = device.health.reason
    return attrs.evolve(device, health=Health.unhealthy(why if own is None else f"{own}; {why}"))


@final
class Offer:
    """What a backend's devices are offered as: behind an obstacle, each of them is Unhealthy. asyncio only.

    Args:
        source: What is known of the backend.

    Attributes:
        discovery: The newest `Discovery` as it is offered.
        obstacle: Why no container can get a device; None: one can.
    """

    def __init__(self, source: Observable[Discovery]) -> None:
        self._source = source
        self._since = 0.0
        self.obstacle: str | None = None
        self.discovery = Observable(source.value)

    async def run(self) -> None:
        """Follow the source until cancelled."""
        version = -1
        while True:
            await self._source.after(version)
            version = self._source.version
            self._publish()

    def block(self, obstacle: str | None) -> None:
        """Set the obstacle, or take it back."""
        if obstacle != self.obstacle:
            self.obstacle, self._since = obstacle, time.monotonic()
            self._publish()

    def _publish(self) -> None:
        found = self._source.value
        why = self.obstacle
        if why is not None and found.devices is not None:
            found = attrs.evolve(
                found,
                devices=without_blocked(found.devices, lambda _: why),
                health={**found.health, **blocked_health(found.devices, lambda _: why, since=self._since)},
            )
        self.discovery.set(found)
