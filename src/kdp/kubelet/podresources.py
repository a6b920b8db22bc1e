"""`PodResources`: what the kubelet says of who holds which device, and of which devices it takes for healthy.

The pod-resources API can be asked, not watched (contract section 10). Rules of this client:

* Each round of questions has a channel of its own, so that none outlives its kubelet.
* An answer may have 16 MiB. "Too many requests" is no fault, it means later; so does everything else that fails.
* There is one entry for each device and NUMA node: a device counts once.
* Each List goes through `ListGuard`: during an Allocate, it may make the kubelet give one device to two pods.
* The kubelet does not list plain init containers: that an id is missing does not say that nobody uses it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar, final

import attrs
import grpc
from typing_extensions import override

from ..errors import PodResourcesError
from ..proto import podresources_v1_pb2 as pb
from .list_guard import ListGuard
from .server import open_channel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable
    from pathlib import Path

_T = TypeVar("_T")

CALL_DEADLINE = 5.0
"""Seconds for an answer. The kubelet takes some milliseconds, unless its device manager's lock is held."""


@final
@attrs.frozen
class Holder:
    """A container that holds a device.

    Attributes:
        namespace: The pod's.
        pod: The pod's name. A pod that was made anew may have the same: the API tells no UID.
        container: The container's name.
    """

    namespace: str
    pod: str
    container: str

    @override
    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod} ({self.container})"


@final
@attrs.frozen
class Report:
    """One answer of List.

    Attributes:
        pods: Namespace and name of every active pod of the node, with devices or without.
        holders: The containers that hold a device, by resource and device id. Containers of one pod may share a device;
            two pods may not (`rival_pods`).
        numa_nodes: The NUMA nodes of those devices as they were listed at Allocate; without an entry: none was told.
    """

    pods: frozenset[tuple[str, str]]
    holders: Mapping[tuple[str, str], tuple[Holder, ...]]
    numa_nodes: Mapping[tuple[str, str], tuple[int, ...]]


def rival_pods(holders: Iterable[Holder]) -> tuple[tuple[str, str], ...]:
    """Return namespace and name of the pods of one device, sorted. Empty if all its holders are containers of one pod.

    The kubelet lists pods in any order, and another order is no news.
    """
    pods = tuple(sorted({(holder.namespace, holder.pod) for holder in holders}))
    return pods if len(pods) > 1 else ()


@final
class SilentKubeletError(PodResourcesError):
    """The kubelet took the question, and did not answer it within `CALL_DEADLINE`."""


@final
class PodResourcesCalls:
    """The questions that can be asked over one channel; see `PodResources.connect`.

    Each raises `PodResourcesError` if there is no answer now.
    """

    def __init__(self, channel: grpc.aio.Channel, guard: ListGuard) -> None:
        self._channel = channel
        self._guard = guard

    async def list(self, resources: Iterable[str] | None = None) -> Report:
        """List the node's pods, and return the holders of these resources, or of all."""
        reply = await self._list()
        wanted = None if resources is None else frozenset(resources)
        holders: dict[tuple[str, str], tuple[Holder, ...]] = {}
        numa_nodes: dict[tuple[str, str], tuple[int, ...]] = {}
        for pod in reply.pod_resources:
            for container in pod.containers:
                holder: Holder | None = None
                for entry in container.devices:
                    if wanted is None or entry.resource_name in wanted:
                        holder = holder or Holder(pod.namespace, pod.name, container.name)
                        for device_id in entry.device_ids:
                            key = entry.resource_name, device_id
                            known = holders.get(key, ())
                            if holder not in known:
                                holders[key] = (*known, holder)
                            for node in entry.topology.nodes:  # a device on two nodes comes in two entries
                                numa_nodes[key] = (*numa_nodes.get(key, ()), node.ID)
        return Report(frozenset((pod.namespace, pod.name) for pod in reply.pod_resources), holders, numa_nodes)

    async def devices_of(self, namespace: str, name: str) -> frozenset[tuple[str, str]]:
        """Return resource and id of each device that a pod has; plain init containers do not count.

        Unlike List, Get makes no kubelet forget the devices of an Allocate that runs (contract section 10). The kubelet
        does not answer for a pod that it does not know.
        """
        request = pb.GetPodResourcesRequest(pod_namespace=namespace, pod_name=name).SerializeToString()
        reply = await self._call("Get", request, pb.GetPodResourcesResponse.FromString)
        return frozenset(
            (entry.resource_name, device_id)
            for container in reply.pod_resources.containers
            for entry in container.devices
            for device_id in entry.device_ids
        )

    async def claimed(self) -> Mapping[tuple[str, str, str], tuple[Holder, ...]]:
        """Return the containers that have devices of claims, by the device's driver, pool and name."""
        reply = await self._list()
        found: dict[tuple[str, str, str], dict[Holder, None]] = {}
        for pod in reply.pod_resources:
            for container in pod.containers:
                holder = Holder(pod.namespace, pod.name, container.name)
                for claim in container.dynamic_resources:
                    for device in claim.claim_resources:
                        key = device.driver_name, device.pool_name, device.device_name
                        found.setdefault(key, {})[holder] = None
        return {key: tuple(holders) for key, holders in found.items()}

    async def allocatable(self) -> Mapping[str, frozenset[str]]:
        """Return the ids that the kubelet takes for healthy, held or not, by resource."""
        reply = await self._call("GetAllocatableResources", b"", pb.AllocatableResourcesResponse.FromString)
        found: dict[str, set[str]] = {}
        for entry in reply.devices:
            found.setdefault(entry.resource_name, set()).update(entry.device_ids)
        return {resource: frozenset(ids) for resource, ids in found.items()}

    async def _list(self) -> pb.ListPodResourcesResponse:
        self._channel.get_state(try_to_connect=True)  # the pause between two Allocates may be shorter than a handshake
        async with self._guard.listing():
            return await self._call("List", b"", pb.ListPodResourcesResponse.FromString)

    async def _call(self, method: str, request: bytes, decode: Callable[[bytes], _T]) -> _T:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, _T] = self._channel.unary_unary(
            f"/v1.PodResourcesLister/{method}", response_deserializer=decode
        )
        try:
            return await call(request, timeout=CALL_DEADLINE)
        except grpc.aio.AioRpcError as error:
            silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            raise (SilentKubeletError if silent else PodResourcesError)(
                f"the kubelet's pod-resources API does not answer {method}: {error.details() or error.code().name}"
            ) from None


@final
class PodResources:
    """The kubelet's pod-resources API on this node.

    Args:
        socket: Its socket.
        guard: Keeps Lists away from Allocates. `None` if this process serves no Allocate.
    """

    def __init__(self, socket: Path, guard: ListGuard | None = None) -> None:
        self.socket = socket
        self._guard = guard or ListGuard(socket.parent)

    def made_at(self) -> float | None:
        """Return when the kubelet made its socket, in Unix seconds; None: there is no socket.

        A kubelet makes it anew at each start, so this is how long the kubelet has been up.
        """
        try:
            found = os.lstat(self.socket)
        except OSError:
            return None
        return found.st_ctime if stat.S_ISSOCK(found.st_mode) else None

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[PodResourcesCalls]:
        """Return a channel for a few questions, asked now."""
        async with open_channel(self.socket) as channel:
            yield PodResourcesCalls(channel, self._guard)
