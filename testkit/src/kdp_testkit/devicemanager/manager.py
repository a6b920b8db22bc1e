"""The device manager's decisions: which devices a container gets, and what the runtime is told.

No I/O and no clock of its own. Calls to plugins go through `PluginCalls`, so that the decisions can be tested
without a socket; the kubelet's manager lock is not held during such a call either (contract section 6.1).

Rule 4: with a topology policy the devices of the container's NUMA hint are taken first (sections 7 and 8).
Rule 5: what the real one chooses by the order of a Go map is chosen here by the random generator that is given.
Rules 1 to 3 are those of `DeviceTable`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from ..protocol.pods import AdmittedContainer, Container, ContainerReply, Pod
from .assignments import AllocationRefused, Assignment, PluginCalls, by_affinity, by_numa_node, check_running
from .device_table import DeviceTable
from .topology import Hint, Topology, device_hints, has_topology

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


@attrs.define(kw_only=True, eq=False)
class DeviceManager(DeviceTable):
    """One device manager, from the kubelet's start to its end.

    Args:
        is_running: Whether a container was reported running by the container runtime when the kubelet started.
        topology: The machine's NUMA nodes and the kubelet's topology policy.
        hints_over_every_node: Profiles up to 1.34 (contract section 8).
    """

    _is_running: Callable[[str, str], bool] = attrs.field(alias="is_running")
    _topology: Topology = attrs.field(alias="topology", factory=Topology)
    _hints_over_every_node: bool = attrs.field(alias="hints_over_every_node", default=False)
    _reusable: tuple[str, dict[str, set[str]]] = attrs.field(init=False, default=("", {}))
    _affinity: dict[tuple[str, str], Hint] = attrs.field(init=False, factory=dict[tuple[str, str], Hint])

    # Admission -----------------------------------------------------------------------------------------------------

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
        held = self._held(pod.uid)
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
            key = (pod.uid, container.name, resource)
            try:
                chosen = await self._choose(*key, wanted, reusable.get(resource, set()), calls)
            except BaseException:
                self._unreserve(key)
                raise
            if not chosen:
                continue
            changed = True
            endpoint = self.endpoints.get(resource)
            if endpoint is None:
                self._reserved.pop(key, None)
                self._booked = self._held()
                raise AllocationRefused(f"unknown Device Plugin {resource}")
            try:
                check_running(endpoint, self._rng, names_path=not self._one_endpoint_per_resource)
                replies = await calls.allocate(endpoint, self._shuffled(chosen))
            except Exception:
                self._reserved.pop(key, None)
                self._booked = self._held()
                raise
            if not replies:
                # Up to 1.37 the chosen devices stay booked until something else counts them again (section 6.3).
                self._unreserve(key)
                raise AllocationRefused("no containers return in allocation response ")
            assignment = Assignment(by_numa_node(resource, self.devices.get(resource, {}), chosen), replies[0])
            self.assignments.setdefault(pod.uid, {}).setdefault(container.name, {})[resource] = assignment
            self._reserved.pop(key, None)
        if changed:
            calls.save()

    def _unreserve(self, key: tuple[str, str, str]) -> None:
        if self._reserved.pop(key, None) is not None and self._keeps_reservations:
            self._booked = self._held()

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
        self._reserved[pod, container, resource] = chosen

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
