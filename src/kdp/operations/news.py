"""`PluginNews`: what of a device plugin's life becomes a Kubernetes Event of its Node; `HolderNews`: of pods. Sans-IO.

Changes of devices' health go in as they come, and where the resources stand when it is looked at; `Notice`s come out.
How many of them are written is decided elsewhere (`kdp.cluster.event_aggregation`).

Each pod that holds a failed device is told once. What the kubelet says of a pod counts if it was asked after the device
had failed: before, another pod may have had it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, final

import attrs

from ..cluster.event_aggregation import Notice
from ..deviceplugin.status import ABSENT
from ..kubelet.podresources import Holder
from ..supervision.conditions import VANISHED
from ..supervision.health import HealthState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..cluster.event_aggregation import EventTarget
    from ..deviceplugin.status import ResourceStatus
    from ..supervision.health import HealthChange

LOST_AFTER: Final = 15.0
"""Seconds without registration after which a resource is lost: a kubelet that restarts is back sooner."""

Device = tuple[str, str]
"""Resource and id."""

ENDED_BY: Final[Mapping[str, str]] = {
    "ConfigurationRejected": "ConfigurationAccepted",
    "DeviceFailed": "DeviceRecovered",
    "DeviceGivenTwice": "DeviceGivenOnce",
    "DeviceQuarantined": "DeviceRecovered",
    "DeviceUnhealthy": "DeviceRecovered",
    "NoHealthyDevice": "DevicesAvailable",
    "ResourceContested": "ResourceUncontested",
    "ResourceLost": "ResourceRegained",
}
"""For each reason of a Warning the reason of the Event that says that it is over."""

_OF_DEVICE: Final = re.compile(r"(\S+): device (\S+) ")
_OF_DEVICES: Final = re.compile(r"(\S+): [0-9]+ devices [^:]+: (.+)")
_OF_RESOURCE: Final = re.compile(r"(\S+/\S+): ")


def subjects_of(message: str) -> frozenset[Device]:
    """Return the devices that an Event of a Node is about; one of a whole resource is about an id that is empty."""
    if found := _OF_DEVICE.match(message):
        return frozenset({(found[1], found[2])})
    if found := _OF_DEVICES.match(message):
        return frozenset((found[1], name) for name in found[2].split(", "))
    found = _OF_RESOURCE.match(message)
    return frozenset({(found[1] if found else "", "")})


@attrs.define
class _Known:
    """What was told of one resource."""

    unregistered_since: float | None = None
    was_registered: bool = False
    is_lost: bool = False
    is_exhausted: bool = False
    had_healthy: bool = False
    rival: str | None = None
    doubles: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()


@final
class PluginNews:
    """What is new, for one process.

    Args:
        node: The Node.
    """

    def __init__(self, node: EventTarget) -> None:
        self._node = node
        self._resources: dict[str, _Known] = {}
        self._rejection: str | None = None
        self._bad: set[Device] = set()
        self._before: set[Device] = set()
        self._seen: set[Device] = set()

    @property
    def bad(self) -> frozenset[Device]:
        """The failed devices that this process or an earlier one has told, without those that work again."""
        return frozenset(self._bad | self._before)

    def recall(self, devices: Iterable[Device]) -> None:
        """Take the failed devices that an earlier process has told. `looked` tells those that work again."""
        self._before = set(devices) - self._seen

    def changed(self, change: HealthChange) -> Notice | None:
        """Return what is to be told of a change of a device's health; None: nothing."""
        before, health, device_id = change.before, change.health, change.device.id
        resource = change.resource or "devices"
        device = resource, device_id
        if before is not None or not health.state.is_listed_healthy:
            self._seen.add(device)
            self._before.discard(device)
        was_up = before is None or before.is_listed_healthy
        if health.state is HealthState.QUARANTINED:
            self._bad.add(device)
            return self._of_device(resource, device_id, "DeviceQuarantined", f"is {health.reason}", "are quarantined")
        if was_up and not health.state.is_listed_healthy:
            self._bad.add(device)
            text = f"is unhealthy: {health.reason}"
            return self._of_device(resource, device_id, "DeviceUnhealthy", text, "are unhealthy")
        if not was_up and health.state.is_listed_healthy:
            self._bad.discard(device)
            return self._recovered(resource, device_id)
        return None

    def _recovered(self, resource: str, device_id: str) -> Notice:
        text, many = "is healthy again", "are healthy again"
        return self._of_device(resource, device_id, "DeviceRecovered", text, many, is_warning=False)

    def looked(self, resources: Mapping[str, ResourceStatus], rejection: str | None, now: float) -> list[Notice]:
        """Return what is new since the last look.

        Args:
            resources: Where each resource stands.
            rejection: Why the configuration is not in force; None: it is.
            now: The time in seconds on any clock that only grows.
        """
        found: list[Notice] = []
        for name, status in resources.items():
            known = self._resources.setdefault(name, _Known())
            self._look_at_registration(found, name, status, known, now)
            self._look_at_devices(found, name, status, known)
            self._look_at_rival(found, name, status, known)
            self._look_at_doubles(found, name, status, known)
        for name in self._resources.keys() - resources.keys():
            known = self._resources.pop(name)
            if known.was_registered:
                text = f"{name}: it is no longer served, because its last device is gone"
                found.append(self._of(name, "ResourceLost", text))
        if rejection != self._rejection:
            self._rejection = rejection
            text = "the configuration is in force again"
            if rejection is not None:
                text = f"the configuration is bad, so the last good one is used: {rejection}"
            reason = "ConfigurationAccepted" if rejection is None else "ConfigurationRejected"
            found.append(self._of("configuration", reason, text, is_warning=rejection is not None))
        return found

    def _look_at_registration(
        self, found: list[Notice], name: str, status: ResourceStatus, known: _Known, now: float
    ) -> None:
        if status.state == "connected" or status.state == ABSENT:
            known.unregistered_since = None
            known.was_registered |= status.state == "connected"
            if known.is_lost:
                known.is_lost = False
                text = f"{name}: registered with the kubelet again"
                found.append(self._of(name, "ResourceRegained", text, is_warning=False))
            return
        if known.unregistered_since is None:
            known.unregistered_since = now
        if not known.is_lost and now - known.unregistered_since >= LOST_AFTER:
            known.is_lost = True
            text = f"{name}: not registered with the kubelet for {LOST_AFTER:g} s: {status.reason or status.state}"
            found.append(self._of(name, "ResourceLost", text))

    def _look_at_devices(self, found: list[Notice], name: str, status: ResourceStatus, known: _Known) -> None:
        gone: frozenset[str] = frozenset()
        if status.vanished:
            gone = frozenset(i for i, device in status.listed.items() if VANISHED.is_in(device.health.conditions))
        news = sorted(gone - known.gone)
        found += [self._of_device(name, i, "DeviceUnhealthy", "is gone", "are gone") for i in news]
        back = sorted(i for i in known.gone - gone if i in status.listed and i not in status.faults)
        words = "is back", "are back"
        found += [self._of_device(name, i, "DeviceRecovered", *words, is_warning=False) for i in back]
        known.gone = gone
        self._bad.update((name, i) for i in news)
        self._bad.difference_update((name, i) for i in back)
        again = sorted(i for resource, i in self._before if resource == name and i in status.listed)
        for i in again:
            if i not in gone and i not in status.faults:
                self._before.discard((name, i))
                found.append(self._recovered(name, i))
        is_exhausted = known.had_healthy and not status.healthy
        known.had_healthy |= status.healthy > 0
        if is_exhausted == known.is_exhausted:
            return
        known.is_exhausted = is_exhausted
        reason, text = "DevicesAvailable", f"{name}: healthy devices again: {status.healthy}"
        if is_exhausted:
            reason, text = "NoHealthyDevice", f"{name}: no healthy device is left, of {status.devices}"
        found.append(self._of(f"{name} devices", reason, text, is_warning=is_exhausted))

    def _look_at_rival(self, found: list[Notice], name: str, status: ResourceStatus, known: _Known) -> None:
        if (status.rival is None) == (known.rival is None):
            return
        known.rival = status.rival
        text = f"{name}: no other plugin serves it now" if status.rival is None else f"{name}: {status.rival}"
        reason = "ResourceUncontested" if status.rival is None else "ResourceContested"
        found.append(self._of(f"{name} rival", reason, text, is_warning=status.rival is not None))

    def _look_at_doubles(self, found: list[Notice], name: str, status: ResourceStatus, known: _Known) -> None:
        doubles = frozenset(status.doubles)
        for device_id in sorted(doubles - known.doubles):
            text = f"is held by two pods, {status.doubles[device_id]}: delete one of the two"
            found.append(self._of_device(name, device_id, "DeviceGivenTwice", text, "are held by two pods each"))
        for device_id in sorted(known.doubles - doubles):
            words = "is no longer held by two pods", "are no longer held by two pods"
            found.append(self._of_device(name, device_id, "DeviceGivenOnce", *words, is_warning=False))
        known.doubles = doubles

    def _of(self, subject: str, reason: str, message: str, *, is_warning: bool = True) -> Notice:
        return Notice(
            target=self._node,
            subject=subject,
            reason=reason,
            message=message,
            together=f"{{number}} times {reason}: {{names}}",
            name=subject,
            is_warning=is_warning,
        )

    def _of_device(
        self, resource: str, device_id: str, reason: str, text: str, many: str, *, is_warning: bool = True
    ) -> Notice:
        return Notice(
            target=self._node,
            subject=f"{resource} {device_id}",
            reason=reason,
            message=f"{resource}: device {device_id} {text}",
            together=f"{resource}: {{number}} devices {many}: {{names}}",
            name=device_id,
            is_warning=is_warning,
        )


@final
@attrs.frozen(kw_only=True)
class HeldDevice:
    """A pod's device that has failed, or works again.

    Attributes:
        resource: The device's resource.
        device_id: Its id.
        holder: The container that has it.
        failure: What is wrong; None: it works again.
    """

    resource: str
    device_id: str
    holder: Holder
    failure: str | None


@final
class HolderNews:
    """What is new of failed devices and their holders, for one process."""

    def __init__(self) -> None:
        self._since: dict[Device, float] = {}
        self._told: dict[tuple[Device, Holder], HeldDevice] = {}

    @property
    def has_told(self) -> bool:
        """Whether a pod was told of a device that has not been said to work again."""
        return bool(self._told)

    def wants_holders(self, asked_at: float | None) -> bool:
        """Return whether a device has failed since the kubelet was asked who holds what."""
        return any(asked_at is None or asked_at < since for since in self._since.values())

    def looked(
        self,
        failed: Mapping[Device, str],
        holders: Mapping[Device, tuple[Holder, ...]],
        asked_at: float | None,
        now: float,
    ) -> list[HeldDevice]:
        """Return what is new.

        Args:
            failed: The devices that have failed, and why.
            holders: The containers that hold devices.
            asked_at: When the kubelet was asked that; None: it was not.
            now: The time in seconds on the same clock.
        """
        self._since = {device: self._since.get(device, now) for device in failed}
        found: list[HeldDevice] = []
        for device, since in self._since.items():
            if asked_at is None or asked_at < since:
                continue
            holding = holders.get(device, ())
            for gone in [key for key in self._told if key[0] == device and key[1] not in holding]:
                del self._told[gone]
            for holder in holding:
                if (device, holder) not in self._told:
                    resource, device_id = device
                    told = HeldDevice(resource=resource, device_id=device_id, holder=holder, failure=failed[device])
                    self._told[device, holder] = told
                    found.append(told)
        for device, holder in [key for key in self._told if key[0] not in failed]:
            told = self._told.pop((device, holder))
            if holder in holders.get(device, ()):
                found.append(attrs.evolve(told, failure=None))
        return found
