"""What is published of a backend's devices: the newest `Discovery`, and which of the devices are offered.

`DiscoveryPublisher` turns what is learned into a `Discovery`, which is complete: all devices, with all conditions of
their health applied. A discovery that fails or hangs keeps the last known devices; after ``stale_after`` they are
Unhealthy with the reason, and never vanish.

Devices that no container could get are not offered: the scheduler sends pods to each device that is, and a controller
replaces each pod that is refused, so an offer that fails makes hundreds of dead pods. A device behind an obstacle is
listed Unhealthy, with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, final

import attrs

from ..concurrency.observable import Observable
from ..model.conditions import Condition
from ..model.devices import Device, Health
from ..model.spelling import hint
from ..startup import shown
from .conditions import OBSTACLE, lasting
from .health import DeviceHealth, HealthChange, HealthMonitor, HealthState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..model.backend import DeviceBackend
    from ..model.health_policy import HealthPolicy
    from .backend_validation import Findings
    from .conditions import Conditions
    from .shared_state import BackendCounts

logger = logging.getLogger(__name__)

Report = tuple[tuple[str, ...], str | None, str]
"""Ids or units, the reason, and the kind of a fault; the reason None: it is taken back."""

_NOT_YET = "it has not discovered anything yet"

LOOK_PAUSE: Final = 5.0
"""Seconds between two looks at what an allocation needs: at most so long after its cause has gone, an obstacle ends."""

Obstacle = Callable[[Device], Condition | None]
"""Returns why no container can get a device; `None` if one can."""


@attrs.frozen(kw_only=True)
class Discovery:
    """What is known of a backend.

    Attributes:
        devices: All its devices, health judged; None: nothing is known yet, so nothing may be registered.
        problem: Why the backend is not ready; None: it is open and has discovered.
        resources: Resources that exist also without a device.
        resource: The one of devices that name none.
        health: How those of the devices are that are not simply healthy, by id; since when on `time.monotonic`'s clock.
        unknown: Why nobody knows how the devices are, although the backend is open; None: somebody does.
        is_absent: Whether it is not ready because the node has no such hardware (`kdp.NoHardware`).
    """

    __repr__ = shown

    devices: tuple[Device, ...] | None
    problem: str | None
    resources: tuple[str, ...] = ()
    resource: str | None = None
    health: Mapping[str, DeviceHealth] = attrs.field(factory=dict[str, DeviceHealth])
    unknown: str | None = None
    is_absent: bool = False


class DiscoveryPublisher:
    """Judges the devices of one backend and publishes what is known of them.

    Args:
        backend: The vendor's object.
        policy: The thresholds of health.
        observe: Called for each change of a device's state; what it raises is logged.
        counts: Where the changes are counted.

    Attributes:
        discovery: The newest `Discovery`.
        not_ready: Why the backend is not ready; None: it is.
        taken_at: When a discovery succeeded last, on `time.monotonic`'s clock; None: none has.
    """

    def __init__(
        self,
        backend: DeviceBackend,
        policy: HealthPolicy,
        observe: Callable[[HealthChange], object] | None,
        counts: BackendCounts,
    ) -> None:
        self._counts = counts
        self._stale_after = backend.stale_after
        self._label = type(backend).__name__
        self._monitor = HealthMonitor(policy)
        self._observe = observe
        self.discovery = Observable(Discovery(devices=None, problem=_NOT_YET))
        self.not_ready: str | None = _NOT_YET
        self.taken_at: float | None = None
        self._found: Findings | None = None
        self._is_absent = False
        self._failing: str | None = None
        self._stale: str | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._has_told_forgotten = False
        self._has_told_strangers = False

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the last discovery that succeeded, as the backend made them."""
        return self._found.devices if self._found else ()

    @property
    def wants_probe(self) -> bool:
        """Whether the health of a device needs a further discovery soon."""
        return self._monitor.wants_probe

    def judge(self, found: Findings) -> tuple[Device, ...]:
        """Return the devices of a discovery with their health judged; publish nothing."""
        self._monitor.probed(found.devices, found.conditions, time.monotonic())
        return self._monitor.devices

    def close(self) -> None:
        """End the timers."""
        self._cancel("stale")
        self._cancel("hold")

    # -- what happens ----------------------------------------------------------------------------------------------

    def take(self, found: Findings) -> None:
        """Discovery succeeded."""
        if self._failing is not None:
            logger.info("%s: discovery works again", self._label, extra={"backend": self._label})
        if self._found is None:
            logger.info("%s: devices discovered: %d", self._label, len(found.devices), extra={"backend": self._label})
        self._recover()
        self.not_ready, self._is_absent = None, False
        self._found, self.taken_at = found, time.monotonic()
        self._stale_after = found.stale_after
        self._publish(self._monitor.probed(found.devices, found.conditions, time.monotonic()))
        if not self._has_told_strangers and (strangers := self._monitor.strangers()):
            self._has_told_strangers = True
            logger.warning(
                "%s: watch has reported a fault of %s, and no device has this id or unit: %s",
                self._label,
                strangers[0],
                hint(strangers[0], (each.id for each in found.devices)) or "the fault counts once a device has it",
                extra={"backend": self._label},
            )

    def wait(self, reason: str) -> None:
        """The start waits for a hook: the reason is why nothing is known yet, unless there is another one."""
        if self._found is None and self.not_ready == _NOT_YET:
            logger.info("%s: %s", self._label, reason, extra={"backend": self._label})
            self.not_ready = reason
            self._publish(())

    def fail(self, reason: str) -> None:
        """Discovery failed."""
        if reason != self._failing:
            logger.error("%s: %s", self._label, reason, extra={"backend": self._label})
        self._failing = reason
        if self.not_ready is not None:
            self.not_ready, self._is_absent = reason, False
        if "stale" not in self._timers:  # the reason why they became stale stays theirs: a new one is no news
            self._call_later("stale", self._stale_after, self._mark_stale)
        self._publish(self._silence())

    def drop(self, reason: str, *, is_absent: bool = False) -> None:
        """The backend is not ready: its devices are Unhealthy until it is again."""
        if reason != self.not_ready:
            level, what = (logging.INFO, "has no hardware here") if is_absent else (logging.WARNING, "is not ready")
            logger.log(level, "%s %s: %s", self._label, what, reason, extra={"backend": self._label})
        self.not_ready, self._is_absent = reason, is_absent
        self._recover()
        self._publish(self._silence())

    def report(self, reports: Iterable[Report]) -> None:
        """Set conditions and take others back, in this order, and then publish once."""
        now, changes = time.monotonic(), list[HealthChange]()
        for ids, reason, kind in reports:
            if reason is None:
                changes += self._monitor.clear(ids, kind=kind, now=now)
            else:
                changes += self._monitor.fault(ids, reason, kind=kind, now=now)
        if self._monitor.forgotten and not self._has_told_forgotten:
            self._has_told_forgotten = True
            logger.warning("%s: watch reports faults of ids that no device has; the oldest are forgotten", self._label)
        self._publish(changes)

    def take_conditions(self, own: Conditions) -> None:
        """Take the conditions that kdp's own checks have found without a discovery."""
        self._publish(self._monitor.looked(own, time.monotonic()))

    # -- silence -------------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        self._failing = self._stale = None
        self._cancel("stale")

    def _mark_stale(self) -> None:
        self._stale = f"unknown since {self._stale_after:g} s: {self._failing}"
        self._publish(self._silence())

    def _silence(self) -> tuple[HealthChange, ...]:
        """Mark all devices Unhealthy if nobody has known for too long how they are."""
        reason = self.not_ready or self._stale
        return self._monitor.silence(reason, time.monotonic()) if reason else ()

    def _call_later(self, timer: str, seconds: float, call: Callable[[], None]) -> None:
        self._timers[timer] = asyncio.get_running_loop().call_later(seconds, call)

    def _cancel(self, timer: str) -> None:
        if timer in self._timers:
            self._timers.pop(timer).cancel()

    # -- what follows --------------------------------------------------------------------------------------------------

    def _publish(self, changes: Iterable[HealthChange]) -> None:
        """Say what devices there are now, and tell the observer what has just changed of them."""
        self._cancel("hold")
        deadline = self._monitor.deadline
        if deadline is not None:
            self._call_later("hold", max(0.0, deadline - time.monotonic()), self._end_hold)
        found = self._found
        self.discovery.set(
            Discovery(devices=None, problem=self.not_ready, is_absent=self._is_absent)
            if found is None
            else Discovery(
                devices=self._monitor.devices,
                problem=self.not_ready,
                resources=found.resources,
                resource=found.resource,
                health=self._monitor.health,
                unknown=self._stale,
                is_absent=self._is_absent,
            )
        )
        for change in changes:
            self._tell(change)

    def _end_hold(self) -> None:
        self._publish(self._monitor.tick(time.monotonic()))

    def _tell(self, change: HealthChange) -> None:
        device, health = change.device, change.health
        resource = device.resource or (self._found.resource if self._found else None)
        self._counts.changed(resource or "", health.state.value, health.kinds)
        if {change.before, health.state} == {HealthState.HEALTHY, HealthState.SUSPECT}:
            # The other changes are seen in the list, and the list's maker logs them.
            text = f"{health.state.value} ({health.reason})" if health.reason else "well"
            extra = {"resource": resource, "device_id": device.id}
            logger.info("%s: device %s is %s, listed Healthy as before", resource, device.id, text, extra=extra)
        if self._observe is not None:
            try:
                self._observe(attrs.evolve(change, resource=resource))
            except Exception:
                logger.exception("%s: the observer of health failed; going on", self._label)


# -- obstacles ---------------------------------------------------------------------------------------------------------


def without_blocked(
    devices: tuple[Device, ...], obstacle: Obstacle, before: Mapping[str, Device] | None = None
) -> tuple[Device, ...]:
    """Return the devices, those that no container can get as Unhealthy; the reason of an unhealthy one stays first.

    Args:
        devices: The devices.
        obstacle: Why no container can get one.
        before: The devices of the last list by id: an obstacle that was there keeps the time at which it began.
    """
    listed = before or {}
    return tuple(
        [
            _blocked(device, _lasting(why, listed.get(device.id))) if (why := obstacle(device)) is not None else device
            for device in devices
        ]
    )


def blocked_health(devices: Iterable[Device], obstacle: Obstacle) -> Mapping[str, DeviceHealth]:
    """Return how those devices are that no container can get, by id; since when the obstacle is there."""
    found: dict[str, DeviceHealth] = {}
    for device in devices:
        if (why := obstacle(device)) is not None:
            health = _blocked(device, why).health
            found[device.id] = DeviceHealth(
                state=HealthState.UNHEALTHY, reason=health.reason, since=why.since, conditions=health.conditions
            )
    return found


def _lasting(why: Condition, before: Device | None) -> Condition:
    """Return a condition with the time at which it began, if the device had it before."""
    return why if before is None else lasting([why], before.health.conditions)[0]


def _blocked(device: Device, why: Condition) -> Device:
    own = device.health
    reason = why.reason if own.reason is None else f"{own.reason}; {why.reason}"
    return attrs.evolve(device, health=Health(reason, (*own.conditions, why)))


@final
class Offer:
    """What a backend's devices are offered as: behind an obstacle, each of them is Unhealthy. asyncio only.

    Args:
        source: What is known of the backend.

    Attributes:
        discovery: The newest `Discovery` as it is offered.
    """

    def __init__(self, source: Observable[Discovery]) -> None:
        self._source = source
        self._why: Condition | None = None
        self.discovery = Observable(source.value)

    @property
    def obstacle(self) -> str | None:
        """Why no container can get a device; `None` if one can."""
        return None if self._why is None else self._why.reason

    async def run(self) -> None:
        """Follow the source until cancelled."""
        version = -1
        while True:
            await self._source.after(version)
            version = self._source.version
            self._publish()

    def refresh(self) -> None:
        """Take the newest of the source now: a reader may be about to hand it on."""
        self._publish()

    def block(self, obstacle: str | None) -> None:
        """Set the obstacle, or take it back."""
        if obstacle != self.obstacle:
            self._why = None if obstacle is None else OBSTACLE.because(obstacle, time.monotonic())
            self._publish()

    def _publish(self) -> None:
        found = self._source.value
        why = self._why
        if why is not None and found.devices is not None:
            found = attrs.evolve(
                found,
                devices=without_blocked(found.devices, lambda _: why),
                health={**found.health, **blocked_health(found.devices, lambda _: why)},
            )
        self.discovery.set(found)
