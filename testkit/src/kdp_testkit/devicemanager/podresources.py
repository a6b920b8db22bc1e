"""The pod-resources API, as the kubelet answers it: who holds which device (contract section 10).

One entry for each device, and for a device with several NUMA nodes one for each of them. Sidecars are listed, plain
init containers are not. List and Get know the pods that this kubelet has heard of since its start; nobody's UID is
told. List frees the devices of finished pods, as it does in the real one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import attrs

from kdp.proto import podresources_v1_pb2 as v1

from .. import events
from ..armed_faults import ArmedFaults
from ..events import EventLog
from ..protocol.pods import Pod
from ..protocol.registry import Refusal
from .manager import DeviceManager
from .nodeapi import ApiServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator
    from pathlib import Path

    from google.protobuf.message import Message

    from .assignments import Assignment

_SERVICE: Final = "v1.PodResourcesLister"
_NO_NODE: Final = -1


@attrs.define(kw_only=True, eq=False)
class PodResources:
    """The answers of one life of a kubelet.

    Args:
        manager: Its device manager.
        pods: The active pods that it knows.
        has_get: Whether Get is enabled (1.34 and later).
        log: Where each call is written down.
        rng: Decides what a Go map's order decides in the real one.
        faults: What goes wrong.
    """

    _manager: DeviceManager = attrs.field(alias="manager")
    _pods: Callable[[], Iterable[Pod]] = attrs.field(alias="pods")
    _has_get: bool = attrs.field(alias="has_get")
    _log: EventLog = attrs.field(alias="log")
    _rng: random.Random = attrs.field(alias="rng")
    _faults: ArmedFaults = attrs.field(alias="faults")

    def server(self, path: Path) -> ApiServer:
        """Return the server for this socket."""
        return ApiServer(
            path,
            _SERVICE,
            {
                "List": (v1.ListPodResourcesRequest, self._meeting("List", self._list)),
                "GetAllocatableResources": (
                    v1.AllocatableResourcesRequest,
                    self._meeting("GetAllocatableResources", self._allocatable),
                ),
                "Get": (v1.GetPodResourcesRequest, self._meeting("Get", self._get)),
            },
            asked=lambda method, error: self._log.add(events.PodResourcesAsked(method=method, error=error)),
        )

    def _meeting(self, method: str, answer: Callable[[Any], Message]) -> Callable[[Any], Awaitable[Message]]:
        """Let the faults meet a call before it is answered."""

        async def meet(request: Any) -> Message:
            await self._faults.meet(method)
            return answer(request)

        return meet

    def _list(self, request: v1.ListPodResourcesRequest) -> v1.ListPodResourcesResponse:
        self._manager.release_finished()
        pods = list(self._pods())
        self._rng.shuffle(pods)
        reply = v1.ListPodResourcesResponse(pod_resources=[self._entry_of(pod) for pod in pods])
        return v1.ListPodResourcesResponse.FromString(self._faults.shape(reply.SerializeToString()))

    def _get(self, request: v1.GetPodResourcesRequest) -> v1.GetPodResourcesResponse:
        if not self._has_get:
            raise Refusal("PodResources API Get method disabled")
        for pod in self._pods():
            if (pod.name, pod.namespace) == (request.pod_name, request.pod_namespace):
                return v1.GetPodResourcesResponse(pod_resources=self._entry_of(pod))
        raise Refusal(f"pod {request.pod_name} in namespace {request.pod_namespace} not found")

    def _allocatable(self, request: v1.AllocatableResourcesRequest) -> v1.AllocatableResourcesResponse:
        entries: list[v1.ContainerDevices] = []
        for resource, healthy in self._manager.healthy.items():
            for device_id, device in self._manager.devices.get(resource, {}).items():
                if device_id not in healthy:
                    continue
                if device.numa_nodes is None:
                    entries.append(_entry(resource, device_id))
                else:
                    # A topology that names no node makes no entry at all.
                    entries.extend(_entry(resource, device_id, node) for node in device.numa_nodes)
        self._rng.shuffle(entries)
        return v1.AllocatableResourcesResponse(devices=entries)

    def _entry_of(self, pod: Pod) -> v1.PodResources:
        listed = [container for container in pod.in_order if container.restartable or container in pod.containers]
        held = self._manager.assignments.get(pod.uid, {})
        containers = [
            v1.ContainerResources(
                name=container.name,
                devices=[
                    entry
                    for resource, assignment in held.get(container.name, {}).items()
                    for entry in _entries(resource, assignment)
                ],
            )
            for container in listed
        ]
        return v1.PodResources(name=pod.name, namespace=pod.namespace, containers=containers)


def _entries(resource: str, assignment: Assignment) -> Iterator[v1.ContainerDevices]:
    for node, device_ids in assignment.by_numa_node.items():
        for device_id in device_ids:
            yield _entry(resource, device_id, None if node == _NO_NODE else node)


def _entry(resource: str, device_id: str, node: int | None = None) -> v1.ContainerDevices:
    topology = None if node is None else v1.TopologyInfo(nodes=[v1.NUMANode(ID=node)])
    return v1.ContainerDevices(resource_name=resource, device_ids=[device_id], topology=topology)
