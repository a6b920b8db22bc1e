"""The node as the API server knows it: its pods, what runs of them, and what the node object says of its devices.

All of this outlives the kubelet's process. Admission is here too, because it is where both sides meet: the device
manager chooses, the node's status is checked, the containers start (contract sections 4.6 and 6).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import anyio
import attrs

from .. import events
from ..protocol.pods import (
    AdmissionError,
    AdmittedContainer,
    AdmittedPod,
    Container,
    ContainerStartError,
    KubeletPanic,
    Pod,
    ScenarioError,
)
from ..protocol.wire import CallError
from .assignments import AllocationRefused
from .topology import REFUSAL

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from ..events import EventLog
    from ..profiles import Profile
    from .kubelet_process import KubeletProcess


@attrs.frozen(kw_only=True)
class NodeStatus:
    """What the node object in the API server says about extended resources.

    Attributes:
        capacity: By resource. A resource that the kubelet has forgotten stays here, with 0, for ever.
        allocatable: By resource.
    """

    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]


@attrs.define
class _Bound:
    """A pod that the API server has bound to this node and that has not failed.

    Attributes:
        pod: The pod.
        admitted_in: Which life of the kubelet has admitted it last.
        started: Whether all its containers were started once.
        running: The containers in the runtime, with how often each had restarted.
        begun: The containers that have run since the node booted, the completed ones too.
    """

    pod: Pod
    admitted_in: int
    started: bool = False
    running: dict[str, int] = attrs.field(factory=dict[str, int])
    begun: set[str] = attrs.field(factory=set[str])


def _is_named(one: Pod, other: Pod) -> bool:
    return (one.namespace, one.name) == (other.namespace, other.name)


class Workload:
    """The pods of one node and its node object, over all lives of its kubelet.

    Args:
        log: Where everything is written down.
        rng: Decides what a map's order decides in the real one.
        current: The kubelet's life now; None while it is down.
    """

    def __init__(self, log: EventLog, rng: random.Random, current: Callable[[], KubeletProcess | None]) -> None:
        self._log = log
        self._rng = rng
        self._current = current
        self._lives = 0
        self._bound: dict[str, _Bound] = {}
        self._running_at_start: dict[tuple[str, str], int] = {}
        self._capacity: dict[str, int] = {}
        self._allocatable: dict[str, int] = {}
        self._one_at_a_time = anyio.Lock()
        self.sources_ready = True

    # The kubelet's comings and goings ------------------------------------------------------------------------------

    def kubelet_starts(self, plugin_dir: Path) -> None:
        """Note what the container runtime reports running, and whether the node counts as new."""
        self._lives += 1
        self._running_at_start = {
            (uid, container): restarts
            for uid, bound in self._bound.items()
            for container, restarts in bound.running.items()
        }
        self.sources_ready = not self._bound
        if not plugin_dir.is_dir() or all(path.name.startswith(".") for path in plugin_dir.iterdir()):
            # Without any file the node counts as new, and what its object says of devices as void (section 4.5).
            self._capacity = dict.fromkeys(self._capacity, 0)

    def node_reboots(self) -> None:
        """End every container."""
        for bound in self._bound.values():
            bound.running.clear()
            bound.begun.clear()
            bound.started = False

    def was_running(self, pod: str, container: str, profile: Profile) -> bool:
        """Tell whether this kubelet takes the container for one that ran when it started (contract section 4.6)."""
        restarts = self._running_at_start.get((pod, container))
        if restarts is None:
            return False
        # An older kubelet may look at the record of a dead predecessor instead; which one is up to a map's order.
        return restarts == 0 or profile.sees_restarted_containers or self._rng.random() < 1 / (restarts + 1)

    # The node object -----------------------------------------------------------------------------------------------

    def look(self, life: KubeletProcess) -> tuple[dict[str, int], dict[str, int]]:
        """Update the node's status from the device manager; return the latter's capacity and allocatable."""
        capacity, allocatable, gone = life.manager.capacity()
        if gone:
            life.save()
        self._capacity |= {**dict.fromkeys(gone, 0), **capacity}
        self._allocatable = {**self._capacity, **allocatable}
        return capacity, allocatable

    def status(self) -> NodeStatus:
        """Return the node's status as it was updated last."""
        return NodeStatus(capacity=dict(self._capacity), allocatable=dict(self._allocatable))

    def _check_fits(self, life: KubeletProcess, pod: Pod) -> None:
        """Refuse what the node's status has no room for (contract section 6.3, ``OutOf``).

        A resource that the node object does not have at all is left out of the check, so that the pod starts
        without it (section 4.6).
        """
        self.look(life)
        holds_devices = pod.uid in life.manager.assignments
        others = [bound.pod.requests() for uid, bound in self._bound.items() if uid != pod.uid]
        for resource, requested in sorted(pod.requests().items()):
            if resource not in self._allocatable or requested == 0:
                continue
            # What is allocated already counts as there, or running pods would not fit after a failure.
            floor = len(life.manager.booked(resource)) if holds_devices else 0
            room = max(self._allocatable[resource], floor)
            used = sum(other.get(resource, 0) for other in others)
            if requested > room - used:
                raise AdmissionError(
                    f"OutOf{resource}",
                    f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, "
                    f"capacity: {room}",
                )

    # Pods ----------------------------------------------------------------------------------------------------------

    def pods(self) -> dict[str, Pod]:
        """Return the pods by uid."""
        return {uid: bound.pod for uid, bound in self._bound.items()}

    def heard_of(self) -> list[tuple[Pod, str]]:
        """Return the pods that the kubelet has heard of since its start, with their phases: until then none."""
        return [
            (bound.pod, "Running" if bound.started else "Pending")
            for bound in self._bound.values()
            if bound.admitted_in == self._lives
        ]

    def find(self, pod: Pod | AdmittedPod | str) -> Pod:
        """Return the pod, or the pod with this uid; raises `ScenarioError`."""
        return self._find(pod).pod

    def forget(self, pod: Pod | AdmittedPod | str) -> None:
        """Remove a pod from the node."""
        bound = self._find(pod)
        del self._bound[bound.pod.uid]
        life = self._current()
        if life is not None and bound.admitted_in == self._lives:
            life.pods_api.removed(bound.pod)
        self._log.add(events.PodDeleted(pod=bound.pod.name))

    def _find(self, pod: Pod | AdmittedPod | str) -> _Bound:
        pod = pod.pod if isinstance(pod, AdmittedPod) else pod
        uid = pod if isinstance(pod, str) else pod.uid
        try:
            return self._bound[uid]
        except KeyError:
            raise ScenarioError(f"there is no pod {uid!r} on this node") from None

    def hear_from_api_server(self, life: KubeletProcess) -> None:
        """All sources of pods have spoken: from now on finished pods are noticed."""
        self.sources_ready = life.manager.sources_ready = True

    async def admit(self, life: KubeletProcess, pod: Pod, *, start: bool) -> AdmittedPod:
        """Admit a pod and start its containers; see `SimulatedKubelet.admit`."""
        known = self._bound.get(pod.uid)
        if known is not None and known.admitted_in == self._lives:
            raise ScenarioError(f"pod {pod.name!r} was admitted already, and the kubelet has not restarted since")
        if known is None and not self.sources_ready:
            # A pod that nobody knew before comes after the API server's first word.
            self.hear_from_api_server(life)
        namesake = next(
            (each.pod for each in self._bound.values() if each.pod.uid != pod.uid and _is_named(each.pod, pod)), None
        )
        if namesake is not None:
            raise ScenarioError(
                f"pod {pod.namespace}/{pod.name} is on this node already, with the UID {namesake.uid}: the API server "
                f"accepts this name only after that pod is gone; delete it first"
            )
        bound = known or _Bound(pod, self._lives)
        bound.pod = pod
        bound.admitted_in = self._lives
        async with self._one_at_a_time:
            self._bound[pod.uid] = bound
            life.pods_api.updated(pod, "Running" if bound.started else "Pending", is_new=True)
            try:
                await self._allocate(life, pod)
                self._check_fits(life, pod)
            except BaseException as error:
                died = self._current() is not life or isinstance(error, KubeletPanic)
                if not died or known is None:
                    self._bound.pop(pod.uid, None)
                if not isinstance(error, AdmissionError):
                    raise
                if died:
                    raise ScenarioError(
                        f"the kubelet ended while it admitted pod {pod.name!r}; admit it again when the kubelet is back"
                    ) from error
                life.pods_api.updated(pod, "Failed", is_new=False)
                life.pods_api.removed(pod)
                self._log.add(events.PodRejected(pod=pod.name, reason=error.reason, message=error.message))
                raise
        given = {container.name: life.manager.given(pod.uid, container.name) for container in pod.in_order}
        self._log.add(
            events.PodAdmitted(pod=pod.name, devices={name: dict(what.devices) for name, what in given.items()})
        )
        if start and not bound.started:
            for container in pod.in_order:
                await self._start(life, bound, container)
            bound.started = True
            life.pods_api.updated(pod, "Running", is_new=False)
            given = {container.name: life.manager.given(pod.uid, container.name) for container in pod.in_order}
        return AdmittedPod(pod=pod, containers=given)

    async def _allocate(self, life: KubeletProcess, pod: Pod) -> None:
        for container in pod.in_order:
            if not life.manager.align(pod, container):
                raise AdmissionError(*REFUSAL)
            try:
                await life.manager.allocate(pod, container, life)
            except (AllocationRefused, CallError) as error:
                raise AdmissionError(
                    "UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected"
                ) from error

    async def readmit(self, life: KubeletProcess) -> dict[str, AdmittedPod | AdmissionError]:
        """Admit all known pods again; see `SimulatedKubelet.readmit`."""
        if self.sources_ready:
            raise ScenarioError("the kubelet already has the pods of the API server; only a restart brings them again")
        outcome: dict[str, AdmittedPod | AdmissionError] = {}
        for uid, bound in list(self._bound.items()):
            if bound.admitted_in == self._lives:
                continue
            try:
                outcome[uid] = await self.admit(life, bound.pod, start=True)
            except AdmissionError as error:
                outcome[uid] = error
        self.hear_from_api_server(life)
        return outcome

    async def start_container(
        self, life: KubeletProcess, pod: Pod | AdmittedPod | str, container: str
    ) -> AdmittedContainer:
        """Start a container (again); see `SimulatedKubelet.start_container`."""
        bound = self._find(pod)
        if bound.admitted_in != self._lives:
            raise ScenarioError(
                f"the kubelet has not received pod {bound.pod.name!r} since its start, so it starts none of its "
                f"containers: admit it, or readmit all"
            )
        for candidate in bound.pod.in_order:
            if candidate.name == container:
                self._check_order(bound, candidate)
                return await self._start(life, bound, candidate)
        raise ScenarioError(f"pod {bound.pod.name!r} has no container {container!r}")

    def _check_order(self, bound: _Bound, container: Container) -> None:
        """Refuse a start for which it is not time: init containers run one after another, before the others."""
        before = itertools.takewhile(lambda each: each is not container, bound.pod.init_containers)
        late = [each.name for each in before if each.name not in bound.begun]
        if late:
            raise ScenarioError(
                f"container {container.name!r} of pod {bound.pod.name!r} cannot start before init container "
                f"{late[0]!r} has"
            )

    async def _start(self, life: KubeletProcess, bound: _Bound, container: Container) -> AdmittedContainer:
        try:
            given = await life.manager.start(bound.pod, container, life)
        except (AllocationRefused, CallError) as error:
            raise ContainerStartError(container.name, str(error)) from error
        bound.begun.add(container.name)
        if container.restartable or container in bound.pod.containers:
            bound.running[container.name] = bound.running.get(container.name, -1) + 1
        return given
