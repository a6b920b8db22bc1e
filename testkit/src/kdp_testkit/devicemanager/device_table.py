"""What the device manager knows: which plugins are registered, which devices exist, and who holds them.

Rule 1: a list replaces the table; capacity = healthy + unhealthy entries, allocatable = healthy (section 5).
Rule 2: the end of the last plugin moves all devices to unhealthy; more than five minutes later the resource is
forgotten at the next look at the capacity, not by a timer (section 5).
Rule 3: devices of a pod are free when the pod is not active any more, and that is looked at lazily: before an
allocation (section 6.2).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

import attrs

from ..protocol.validation import HEALTHY, STOP_GRACE_PERIOD
from ..protocol.wire import ListedDevice
from .assignments import AlreadyConnected, Assignment, Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..protocol.pods import Pod

_T = TypeVar("_T")


@attrs.define(kw_only=True, eq=False)
class DeviceTable:
    """The registrations, devices and assignments of one life of a kubelet.

    Args:
        one_endpoint_per_resource: Profiles up to 1.36 (contract section 2.5).
        clock: Seconds that only grow; for the grace period.
        rng: Decides what a Go map's order decides in the real one.
        active_pods: The uids of the pods that are not finished, asked when devices are freed.
        health_by_id_alone: Profiles up to 1.36: a changed device is told to a pod that holds such an id of any
            resource (contract section 9).
        keeps_reservations: Profiles from 1.38 on: the devices of an Allocate that runs stay booked when those of ended
            pods are freed (kubernetes/kubernetes#137534).
    """

    _one_endpoint_per_resource: bool = attrs.field(alias="one_endpoint_per_resource")
    _clock: Callable[[], float] = attrs.field(alias="clock")
    _rng: random.Random = attrs.field(alias="rng")
    _active_pods: Callable[[], Collection[str]] = attrs.field(alias="active_pods")
    _health_by_id_alone: bool = attrs.field(alias="health_by_id_alone", default=False)
    _keeps_reservations: bool = attrs.field(alias="keeps_reservations", default=False)
    sources_ready: bool = attrs.field(init=False, default=True)
    endpoints: dict[str, Endpoint] = attrs.field(init=False, factory=dict[str, Endpoint])
    devices: dict[str, dict[str, ListedDevice]] = attrs.field(init=False, factory=dict[str, dict[str, ListedDevice]])
    healthy: dict[str, set[str]] = attrs.field(init=False, factory=dict[str, set[str]])
    unhealthy: dict[str, set[str]] = attrs.field(init=False, factory=dict[str, set[str]])
    assignments: dict[str, dict[str, dict[str, Assignment]]] = attrs.field(
        init=False, factory=dict[str, dict[str, dict[str, Assignment]]]
    )
    _by_path: dict[str, dict[str, Endpoint]] = attrs.field(init=False, factory=dict[str, dict[str, Endpoint]])
    _booked: dict[str, set[str]] = attrs.field(init=False, factory=dict[str, set[str]])
    _reserved: dict[tuple[str, str, str], set[str]] = attrs.field(
        init=False, factory=dict[tuple[str, str, str], set[str]]
    )

    # Registrations -------------------------------------------------------------------------------------------------

    def restore(
        self, resources: Iterable[str], assignments: Mapping[str, Mapping[str, Mapping[str, Assignment]]]
    ) -> None:
        """Take over a checkpoint: empty sets, stopped endpoints without options (contract section 4.5)."""
        for pod, containers in assignments.items():
            self.assignments[pod] = {name: dict(resources) for name, resources in containers.items()}
        self._booked = self._held()
        for resource in resources:
            self.healthy[resource] = set()
            self.unhealthy[resource] = set()
            self.endpoints[resource] = Endpoint(resource, stopped_at=self._clock())

    def connected(self, endpoint: Endpoint) -> None:
        """Install the endpoint of a plugin that has answered GetDevicePluginOptions.

        Raises:
            AlreadyConnected: 1.37: this resource is on record with this path, dead or alive.
        """
        if not self._one_endpoint_per_resource:
            known = self._by_path.setdefault(endpoint.resource, {})
            if endpoint.socket_path in known:
                raise AlreadyConnected(f"device plugin already connected: {endpoint.socket_path}")
            known[endpoint.socket_path] = endpoint
        self.endpoints[endpoint.resource] = endpoint

    def disconnected(self, resource: str, socket_path: str) -> None:
        """Note that a plugin's connection was closed."""
        if self._one_endpoint_per_resource:
            endpoint = self.endpoints.get(resource)
            if endpoint is not None:
                self._mark_unhealthy(resource)
                endpoint.stopped_at = self._clock()
            return
        known = self._by_path.get(resource, {})
        endpoint = known.pop(socket_path, None)
        if endpoint is None:
            return
        endpoint.stopped_at = self._clock()
        if known:
            # An arbitrary survivor takes over, also one whose end went unnoticed (a poisoned path).
            self.endpoints[resource] = self._rng.choice(list(known.values()))
        else:
            del self._by_path[resource]
            self._mark_unhealthy(resource)

    def listed(self, resource: str, devices: Iterable[ListedDevice]) -> set[str]:
        """Replace the resource's table; of a repeated id the last entry counts, but each one is counted.

        Returns:
            The pods whose status is to be written again: a device of theirs has another health text, or is back
            (contract section 9). One that vanished concerns nobody.
        """
        before = self.devices.get(resource, {})
        changed: list[str] = []
        table: dict[str, ListedDevice] = {}
        healthy: set[str] = set()
        unhealthy: set[str] = set()
        for device in devices:
            known = before.get(device.id)
            if known is None or known.health != device.health:
                changed.append(device.id)
            table[device.id] = device
            (healthy if device.health == HEALTHY else unhealthy).add(device.id)
        self.devices[resource] = table
        self.healthy[resource] = healthy
        self.unhealthy[resource] = unhealthy
        return self._concerned(resource, changed)

    def _concerned(self, resource: str, changed: Collection[str]) -> set[str]:
        """Return the pods that are told of these devices: one for each device, even if several hold such an id."""
        holders: dict[str, list[str]] = {}
        for pod, containers in self.assignments.items() if changed else ():
            held = {
                device_id
                for resources in containers.values()
                for name, assignment in resources.items()
                if self._health_by_id_alone or name == resource
                for device_id in assignment.device_ids
            }
            for device_id in held:
                holders.setdefault(device_id, []).append(pod)
        return {self._rng.choice(holders[device_id]) for device_id in changed if device_id in holders}

    def health(self, pod: Pod) -> dict[str, dict[str, dict[str, str]]]:
        """Return what the pod's status says: main container -> resource -> device id -> Healthy or Unhealthy.

        A device that is no longer listed, or not yet, counts as healthy (contract section 9).
        """
        found: dict[str, dict[str, dict[str, str]]] = {}
        for container in pod.containers:
            found[container.name] = {}
            for resource, assignment in self.assignments.get(pod.uid, {}).get(container.name, {}).items():
                table = self.devices.get(resource, {})
                found[container.name][resource] = {
                    device_id: "Unhealthy" if device_id in table and table[device_id].health != HEALTHY else HEALTHY
                    for device_id in sorted(assignment.device_ids)
                }
        return found

    def _mark_unhealthy(self, resource: str) -> None:
        self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))
        if resource in self.healthy:
            self.healthy[resource] = set()

    # What the node reports -----------------------------------------------------------------------------------------

    def capacity(self) -> tuple[dict[str, int], dict[str, int], set[str]]:
        """Return capacity, allocatable and the resources that were forgotten by this look.

        A resource whose plugin ended more than five minutes ago is forgotten here and nowhere else.
        """
        gone = {resource for resource in self.healthy.keys() | self.unhealthy.keys() if self._is_expired(resource)}
        for resource in gone:
            self.endpoints.pop(resource, None)
            self.healthy.pop(resource, None)
            self.unhealthy.pop(resource, None)
        allocatable = {resource: len(ids) for resource, ids in self.healthy.items()}
        capacity = dict(allocatable)
        for resource, ids in self.unhealthy.items():
            capacity[resource] = capacity.get(resource, 0) + len(ids)
        return capacity, allocatable, gone

    def _is_expired(self, resource: str) -> bool:
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            return True
        return endpoint.stopped_at is not None and self._clock() - endpoint.stopped_at > STOP_GRACE_PERIOD

    def booked(self, resource: str) -> set[str]:
        """Return the ids that count as in use, also those that a failed call left booked (contract section 6.3)."""
        return set(self._booked.get(resource, ()))

    def release_finished(self) -> None:
        """Free the devices of pods that are not active any more."""
        if not self.sources_ready:
            return
        finished = self.assignments.keys() - set(self._active_pods())
        if finished:
            for pod in finished:
                del self.assignments[pod]
            self._booked = self._held()

    def _held(self, *pods: str) -> dict[str, set[str]]:
        """Return the ids that these pods hold, by resource; without arguments those of all pods."""
        held: dict[str, set[str]] = {}
        for pod in pods or self.assignments:
            for resources in self.assignments.get(pod, {}).values():
                for resource, assignment in resources.items():
                    held.setdefault(resource, set()).update(assignment.device_ids)
        if not pods and self._keeps_reservations:
            for (_, _, resource), ids in self._reserved.items():
                held.setdefault(resource, set()).update(ids)
        return held

    def is_known(self, resource: str) -> bool:
        """Tell whether the resource counts as a device plugin's: listed, or allocated before."""
        return resource in self.healthy or resource in self._booked

    # Small helpers -------------------------------------------------------------------------------------------------

    def _assigned(self, pod: str, container: str, resource: str) -> set[str] | None:
        assignment = self.assignments.get(pod, {}).get(container, {}).get(resource)
        return None if assignment is None else assignment.device_ids

    def _shuffled(self, values: Iterable[_T]) -> list[_T]:
        shuffled = list(values)
        self._rng.shuffle(shuffled)
        return shuffled
