"""`ResourceStatus`: where one resource stands, for probes and for people; and which of its devices have failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

import attrs

from ..model.devices import Device
from ..startup import shown
from ..supervision.conditions import has_failed
from ..supervision.health import DeviceHealth
from .inventory import GONE
from .session import State

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..supervision.publisher import Discovery
    from .tracking.drift import ResourceView  # noqa: TC004 - attrs reads no annotation

ABSENT: Final = "no hardware"
"""The state of a resource that is not registered because the node has no such hardware."""

MOST_NAMED: Final = 3
"""Devices that a sentence names."""

Cause = Literal["backend", "list_too_large", "kubelet", "registration", "obstacle"]


@attrs.frozen(kw_only=True)
class ResourceStatus:
    """Where one resource stands.

    Attributes:
        resource: Its name.
        state: The session's state, as ``connected``.
        reason: Why it is not ready. `None` if it is, or if nothing is wrong yet.
        obstacle: Why no container can get some of the devices, which are listed Unhealthy. `None` without an obstacle.
        cdi: Why the CDI file cannot be written. `None` if it can, or if CDI is off.
        kubelet: Why the kubelet seems to hang, although it holds a stream. `None` if it answers.
        too_large: Why the newest list is larger than the kubelet takes, and not sent. `None` if it fits.
        rival: Another plugin of the resource. `None` if there is no such plugin.
        doubles: The devices with two pods, each with the names of the pods.
        devices: How many devices are listed.
        healthy: How many of them are healthy.
        faults: How those are that are not simply healthy, by id; since when on `time.monotonic`'s clock. Those that
            have vanished are not among them.
        listed: The devices that are listed, by id, also those that have vanished.
        holders: The pods of a device, as ``namespace/pod (container)`` by device id, by the kubelet's last list. `None`
            without a recent list.
        cause: In one word why it is not ready: its ``backend`` has no devices to list yet, its ``list_too_large``,
            there is no ``kubelet``, the ``registration`` has not ended yet, or an ``obstacle`` keeps containers from
            its devices. `None` if it is ready.
        view: The devices in the kubelet's last answer. `None` without an answer or a connection.
        vanished: How many listed devices are there no more.
        since: When the kubelet began to hold a stream, or when it held the last one, on `time.monotonic`'s clock.
            `None` if that is unknown.
    """

    __repr__ = shown

    resource: str
    state: str
    reason: str | None
    devices: int
    healthy: int
    faults: Mapping[str, DeviceHealth] = attrs.field(factory=dict[str, DeviceHealth])
    listed: Mapping[str, Device] = attrs.field(factory=dict[str, Device], repr=False)
    holders: Mapping[str, str] | None = None
    doubles: Mapping[str, str] = attrs.field(factory=dict[str, str])
    obstacle: str | None = None
    cdi: str | None = None
    too_large: str | None = None
    rival: str | None = None
    kubelet: str | None = None
    cause: Cause | None = None
    view: ResourceView | None = None
    vanished: int = 0
    since: float | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the kubelet holds a stream of this resource, and containers can get the devices.

        A resource of which the node has no hardware is ready, too.
        """
        return self.state == ABSENT or (self.state == State.CONNECTED.value and self.obstacle is None)

    @property
    def details(self) -> Mapping[str, object]:
        """What only this protocol has for the readiness probe: troubles that leave the resource ready."""
        found = {
            "cdi": self.cdi,
            "too_large": self.too_large,
            "rival": self.rival,
            "given_twice": self.given_twice,
            "kubelet": self.kubelet,
        }
        return {name: trouble for name, trouble in found.items() if trouble is not None}

    @property
    def given_twice(self) -> str | None:
        """Name the devices that two pods hold, with the remedy. `None` if there is no such device."""
        if not self.doubles:
            return None
        held = "; ".join(f"{device_id} by {pods}" for device_id, pods in sorted(self.doubles.items())[:MOST_NAMED])
        more = f"; and {len(self.doubles) - MOST_NAMED} more" if len(self.doubles) > MOST_NAMED else ""
        return f"two pods hold one device: {held}{more}; delete one of the two pods"

    @property
    def claims(self) -> None:
        """None: this protocol knows no claims."""


def failures_of(discovery: Discovery, listed: Collection[str], vanished: Collection[str]) -> Mapping[str, str]:
    """Return which listed devices have failed, and why, by id: what is told of pods, and what they may be evicted for.

    A device may be listed Unhealthy although nobody knows that it has failed: because discovery is silent, or because
    something keeps new containers from it. The containers that have it go on, so that is no failure.

    Args:
        discovery: What is known of the backend.
        listed: The ids of the resource's list.
        vanished: Those of them that are no longer in the hardware.
    """
    found = {
        device_id: health.reason or health.state.value
        for device_id, health in discovery.health.items()
        if device_id in listed and not health.state.is_listed_healthy and has_failed(health.conditions)
    }
    if discovery.problem is None and discovery.unknown is None:
        found |= dict.fromkeys(vanished, GONE)
    return found
