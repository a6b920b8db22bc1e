"""The device manager's state and decisions: which devices exist, who holds them, which ones a container gets.

No I/O and no clock of its own. Calls to plugins go through `PluginCalls`, so that the decisions can be tested
without a socket; the kubelet's manager lock is not held during such a call either (contract section 6.1).

Rule 1: a list replaces the table; capacity = healthy + unhealthy entries, allocatable = healthy (section 5).
Rule 2: the end of the last plugin moves all devices to unhealthy; more than five minutes later the resource is
forgotten at the next look at the capacity, not by a timer (section 5).
Rule 3: devices of a pod are free when the pod is not active any more, and that is looked at lazily: before an
allocation (section 6.2).
Rule 4: with a topology policy the devices of the container's NUMA hint are taken first (sections 7 and 8).
Rule 5: what the real one chooses by the order of a Go map is chosen here by the random generator that is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .assignments import (
    AllocationRefused,
    AlreadyConnected,
    Assignment,
    Endpoint,
    PluginCalls,
    by_affinity,
    by_numa_node,
    check_running,
)
from .pods import AdmittedContainer, Container, ContainerReply, Pod
from .topology import Hint, Topology, device_hints, has_topology
from .validation import HEALTHY, STOP_GRACE_PERIOD

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Iterable, Mapping

    from .wire import ListedDevice

_T = TypeVar("_T")


class DeviceManager:
    """One device manager, from the kubelet's start to its end.

    Args:
        one_endpoint_per_resource: Profiles up to 1.36 (contract section 2.5).
        clock: Seconds that only grow; for the grace period.
        rng: Decides what a Go map's order decides in the real one.
        active_pods: The uids of the pods that are not finished, asked when devices are freed.
        is_running: Whether a container was reported running by the container runtime when the kubelet started.
        topology: The machine's NUMA nodes and the kubelet's topology policy.
        hints_over_every_node: Profiles up to 1.34 (contract section 8).
        health_by_id_alone: Profiles up to 1.36: a changed device is told to a pod that holds such an id of any
            resource (contract section 9).
    """

    def __init__(
        self,
        *,
        one_endpoint_per_resource: bool,
        clock: Callable[[], float],
        rng: random.Random,
        active_pods: Callable[[], Collection[str]],
        is_running: Callable[[str, str], bool],
        topology: Topology | None = None,
        hints_over_every_node: bool = False,
        health_by_id_alone: bool = False,
    ) -> None:
        self._one_endpoint_per_resource = one_endpoint_per_resource
        self._clock = clock
        self._rng = rng
        self._active_pods = active_pods
        self._is_running = is_running
        self._topology = topology or Topology()
        self._hints_over_every_node = hints_over_every_node
        self._health_by_id_alone = health_by_id_alone
        self.sources_ready = True
        self.endpoints: dict[str, Endpoint] = {}
        self.devices: dict[str, dict[str, ListedDevice]] = {}
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self.assignments: dict[str, dict[str, dict[str, Assignment]]] = {}
        self._by_path: dict[str, dict[str, Endpoint]] = {}
        self._booked: dict[str, set[str]] = {}
        self._reusable: tuple[str, dict[str, set[str]]] = ("", {})
        self._affinity: dict[tuple[str, str], Hint] = {}

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

        A device that is not listed any more, or not yet, counts as healthy (contract section 9).
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

    def _held(self) -> dict[str, set[str]]:
        held: dict[str, set[str]] = {}
        for containers in self.assignments.values():
            for resources in containers.values():
                for resource, assignment in resources.items():
                    held.setdefault(resource, set()).update(assignment.device_ids)
        return held

    # Admission -----------------------------------------------------------------------------------------------------

    def is_known(self, resource: str) -> bool:
        """Tell whether the resource counts as a device plugin's: listed, or allocated before."""
        return resource in self.healthy or resource in self._booked

    def align(self, pod: Pod, container: Container) -> bool:
        """Choose the NUMA nodes for a container before `allocate`; False: the policy refuses the pod.

        With the pod's scope all of it is decided at its first container.
        """
        if self._topology.policy == "none":
            return True
        if self._topology.scope == "container":
            hints = self.topology_hints(pod, container)
        elif container is pod.in_order[0]:
            hints = self._pod_hints(pod)
        else:
            self._affinity[pod.uid, container.name] = self._affinity[pod.uid, pod.in_order[0].name]
            return True
        best, is_admitted = self._topology.merge(hint for _, hint in self._shuffled(hints.items()))
        self._affinity[pod.uid, container.name] = best
        return is_admitted

    def topology_hints(self, pod: Pod, container: Container) -> dict[str, list[Hint] | None]:
        """Return a container's hints by resource: None where no device has a NUMA node, empty where none can serve.

        Frees the devices of finished pods first.
        """
        self.release_finished()
        reusable = self._reusable[1] if self._reusable[0] == pod.uid else {}
        return {
            resource: self._hints(resource, wanted, self._assigned(pod.uid, container.name, resource), reusable)
            for resource, wanted in container.limits.items()
            if self.is_known(resource)
        }

    def _pod_hints(self, pod: Pod) -> dict[str, list[Hint] | None]:
        self.release_finished()
        held: dict[str, set[str]] = {}
        for resources in self.assignments.get(pod.uid, {}).values():
            for resource, assignment in resources.items():
                held.setdefault(resource, set()).update(assignment.device_ids)
        return {
            resource: self._hints(resource, wanted, held.get(resource), {})
            for resource, wanted in pod.requests().items()
            if self.is_known(resource)
        }

    def _hints(
        self, resource: str, wanted: int, held: Collection[str] | None, reusable: Mapping[str, Collection[str]]
    ) -> list[Hint] | None:
        devices = self.devices.get(resource, {})
        if not has_topology(devices):
            return None
        # After a restart of the kubelet: hints for the very devices that it has.
        available = held or self._available(resource)
        again = () if held else reusable.get(resource, ())
        if (len(held) != wanted) if held else (len({*available, *again}) < wanted):
            return []
        return device_hints(
            devices, available, again, wanted, self._topology.all_nodes, every_node=self._hints_over_every_node
        )

    def _available(self, resource: str) -> set[str]:
        return self.healthy.get(resource, set()) - self._booked.get(resource, set())

    async def allocate(self, pod: Pod, container: Container, calls: PluginCalls) -> None:
        """Give one container its devices. Init containers must come before the others, in spec order.

        A resource that is not known is skipped: the container starts without it (contract section 4.6).

        Raises:
            AllocationRefused: With the kubelet's text.
            KubeletPanic: The list has changed meanwhile, and the devices are not in it.
            Exception: What ``calls`` raises.
        """
        if self._reusable[0] != pod.uid:
            self._reusable = (pod.uid, {})
        reusable = self._reusable[1]
        await self._allocate_container(pod, container, reusable, calls)
        held = self.assignments.get(pod.uid, {}).get(container.name, {})
        stays = container in pod.containers or container.restartable
        for resource, assignment in held.items():
            pool = reusable.setdefault(resource, set())
            if stays:
                pool -= assignment.device_ids
            else:
                pool |= assignment.device_ids

    async def _allocate_container(
        self, pod: Pod, container: Container, reusable: dict[str, set[str]], calls: PluginCalls
    ) -> None:
        changed = released = False
        for resource, wanted in self._shuffled(container.limits.items()):
            if not self.is_known(resource):
                continue
            if not released:
                self.release_finished()
                released = True
            chosen = await self._choose(pod.uid, container.name, resource, wanted, reusable.get(resource, set()), calls)
            if not chosen:
                continue
            changed = True
            endpoint = self.endpoints.get(resource)
            if endpoint is None:
                self._booked = self._held()
                raise AllocationRefused(f"unknown Device Plugin {resource}")
            try:
                check_running(endpoint, self._rng, names_path=not self._one_endpoint_per_resource)
                replies = await calls.allocate(endpoint, self._shuffled(chosen))
            except Exception:
                self._booked = self._held()
                raise
            if not replies:
                # The chosen devices stay booked here until something else counts them again (section 6.3).
                raise AllocationRefused("no containers return in allocation response ")
            assignment = Assignment(by_numa_node(resource, self.devices.get(resource, {}), chosen), replies[0])
            self.assignments.setdefault(pod.uid, {}).setdefault(container.name, {})[resource] = assignment
        if changed:
            calls.save()

    async def _choose(
        self, pod: str, container: str, resource: str, wanted: int, reusable: Collection[str], calls: PluginCalls
    ) -> set[str]:
        """Return the devices to ask Allocate for; none if the container needs no call (contract sections 4.6, 7)."""
        needed = wanted
        held = self._assigned(pod, container, resource)
        if held is not None:
            needed -= len(held)
            if needed != 0:
                raise AllocationRefused(
                    f'pod "{pod}" container "{container}" changed request for resource "{resource}" '
                    f"from {len(held)} to {wanted}"
                )
        if not self.sources_ready and self._is_running(pod, container):
            return set()
        healthy = self.healthy.get(resource)
        if healthy is None:
            raise AllocationRefused(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise AllocationRefused(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not healthy >= (held or set()):
            raise AllocationRefused(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            )
        if needed == 0:
            return set()

        chosen: set[str] = set()

        def take(candidates: Iterable[str]) -> bool:
            booked = self._booked.setdefault(resource, set())
            for device_id in self._shuffled(candidates):
                if len(chosen) == wanted:
                    break
                chosen.add(device_id)
                booked.add(device_id)
            return len(chosen) == wanted

        if take(reusable):
            return chosen
        available = self._available(resource)
        needed = wanted - len(chosen)
        if len(available) < needed:
            raise AllocationRefused(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(available)}"
            )
        aligned, unaligned, unplaced = by_affinity(
            self.devices.get(resource, {}), self._affinity.get((pod, container), Hint(None, True)).nodes, available
        )
        if needed < len(aligned):
            preferred = await self._preferred(resource, aligned | chosen, set(chosen), wanted, calls)
            if take(preferred & aligned) or take(aligned):
                return chosen
        else:
            if take(aligned):
                return chosen
            preferred = await self._preferred(resource, available | chosen, set(chosen), wanted, calls)
            if take(preferred & available) or take(unaligned) or take(unplaced):
                return chosen
        raise AllocationRefused(
            f"unexpectedly allocated less resources than required. Requested: {wanted}, Got: {len(chosen)}"
        )

    async def _preferred(
        self, resource: str, available: Collection[str], must_include: Collection[str], size: int, calls: PluginCalls
    ) -> set[str]:
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            raise AllocationRefused(f"endpoint not found in cache for a registered resource: {resource}")
        if endpoint.options is None or not endpoint.options.preferred_allocation_available:
            return set()
        try:
            check_running(endpoint, self._rng, names_path=not self._one_endpoint_per_resource)
            answer = await calls.preferred(endpoint, self._shuffled(available), self._shuffled(must_include), size)
        except Exception as error:
            raise AllocationRefused(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error
        return set(answer)

    # Container start -----------------------------------------------------------------------------------------------

    async def start(self, pod: Pod, container: Container, calls: PluginCalls) -> AdmittedContainer:
        """Return what the runtime gets for this container, after PreStartContainer where it is wanted.

        Called before every start of every container, also a restart (contract section 7).

        Raises:
            AllocationRefused: With the kubelet's text; the start fails and would be tried again.
            Exception: What ``calls`` raises.
        """
        missing = False
        for resource, wanted in self._shuffled(container.limits.items()):
            if not self.is_known(resource) or wanted == 0:
                continue
            await self._pre_start(pod.uid, container.name, resource, calls)
            if pod.uid in self._active_pods() and self._assigned(pod.uid, container.name, resource) is None:
                missing = True
        if missing:
            await self.allocate(pod, container, calls)
        return self.given(pod.uid, container.name)

    async def _pre_start(self, pod: str, container: str, resource: str, calls: PluginCalls) -> None:
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            raise AllocationRefused(f"endpoint not found in cache for a registered resource: {resource}")
        if endpoint.options is None or not endpoint.options.pre_start_required:
            return
        held = self._assigned(pod, container, resource)
        if held is None:
            raise AllocationRefused(
                f"no devices found allocated in local cache for pod {pod}, container {container}, resource {resource}"
            )
        try:
            check_running(endpoint, self._rng, names_path=not self._one_endpoint_per_resource)
            await calls.pre_start(endpoint, self._shuffled(held))
        except Exception as error:
            raise AllocationRefused(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    def given(self, pod: str, container: str) -> AdmittedContainer:
        """Return what this container holds, from the cache."""
        held = self.assignments.get(pod, {}).get(container, {})
        order = self._shuffled(held)
        return AdmittedContainer(
            devices={resource: tuple(sorted(held[resource].device_ids)) for resource in order},
            replies={resource: held[resource].reply for resource in order},
            reply=ContainerReply.merge(held[resource].reply for resource in order),
        )

    # Small helpers -------------------------------------------------------------------------------------------------

    def _assigned(self, pod: str, container: str, resource: str) -> set[str] | None:
        assignment = self.assignments.get(pod, {}).get(container, {}).get(resource)
        return None if assignment is None else assignment.device_ids

    def _shuffled(self, values: Iterable[_T]) -> list[_T]:
        shuffled = list(values)
        self._rng.shuffle(shuffled)
        return shuffled
