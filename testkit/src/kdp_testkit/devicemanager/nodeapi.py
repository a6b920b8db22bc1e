"""The kubelet's local APIs, as it answers them: pod-resources and pods (contract section 10).

What they have in common: a socket of their own, and a limit of calls a second. The socket is a `Listener`, as
kubelet.sock is: a killed kubelet leaves it behind as a dead file and breaks the connections abruptly. A new kubelet
removes what lies there and binds anew.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs
import grpc
import grpc.aio

from kdp.kubelet.server import start_server, stop_server
from kdp.proto import podresources_v1_pb2 as v1
from kdp.proto import pods_v1alpha1_pb2 as v1alpha1

from .. import events
from ..armed_faults import ArmedFaults
from ..events import EventLog
from ..protocol.listener import Listener
from ..protocol.pods import Pod
from ..protocol.registry import Refusal
from .manager import DeviceManager

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from anyio.streams.memory import MemoryObjectSendStream
    from google.protobuf.message import Message

    from ..protocol.pods import Container
    from .assignments import Assignment

# Contract section 0.1: both APIs.
CALLS_PER_SECOND: Final = 100
BURST: Final = 10


class RateLimit:
    """A bucket of tokens as the kubelet's: 10 at once, then 100 a second.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = float(BURST)
        self._filled = clock()

    def take(self) -> bool:
        """Take a token; False if there is none."""
        now = self._clock()
        self._tokens = min(BURST, self._tokens + (now - self._filled) * CALLS_PER_SECOND)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


Unary = tuple["type[Message]", Callable[[Any], "Awaitable[Message] | Message"]]
"""The request's class, and what answers it; raises `Refusal`."""
Stream = tuple["type[Message]", Callable[[Any], AsyncIterator["Message"]]]
"""The request's class, and what yields the answers; raises `Refusal`."""


class ApiServer:
    """One API at one socket, for one life of a kubelet.

    Args:
        path: The socket.
        service: The service's full name on the wire.
        unary: Its methods with one answer, by name; each call takes a token of the limit.
        streams: Its methods with many answers, by name; they are not limited.
        asked: Told of each call with one answer: its name, and the error that it got.
    """

    def __init__(
        self,
        path: Path,
        service: str,
        unary: Mapping[str, Unary],
        streams: Mapping[str, Stream] | None = None,
        *,
        asked: Callable[[str, str | None], None] | None = None,
    ) -> None:
        self.path = path
        self._asked = asked
        self._limit = RateLimit()
        self._address = f"kdp-simulated-api-{os.getpid()}-{secrets.token_hex(8)}"
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for name, (request, answer) in unary.items():
            handlers[name] = grpc.unary_unary_rpc_method_handler(
                self._limited(name, answer), request_deserializer=request.FromString, response_serializer=_encode
            )
        for name, (request, answers) in (streams or {}).items():
            handlers[name] = grpc.unary_stream_rpc_method_handler(
                _streaming(answers), request_deserializer=request.FromString, response_serializer=_encode
            )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._server.add_insecure_port(f"unix-abstract:{self._address}")
        self._listener: Listener | None = None

    async def start(self) -> None:
        """Bind and listen; `close` must follow, also after an error.

        Raises:
            OSError: The socket cannot be bound.
        """
        self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        await start_server(self._server)
        self._listener = Listener(self.path, self._address)
        self._listener.listen()

    async def serve(self) -> None:
        """Take connections until cancelled; `start` must have been called."""
        if self._listener is not None:
            await self._listener.serve()

    def slam(self) -> None:
        """Break everything at once and abruptly; `serve` must still be cancelled."""
        if self._listener is not None:
            self._listener.slam()

    async def close(self) -> None:
        """Stop the server. Idempotent; the socket's file stays, as a killed kubelet leaves it."""
        if self._listener is not None:
            self._listener.close()
        await stop_server(self._server, None)

    def _limited(self, name: str, answer: Callable[[Any], Awaitable[Message] | Message]) -> Any:
        async def serve(request: Any, context: Any) -> Message:
            error: str | None = None
            try:
                if not self._limit.take():
                    raise Refusal("rejected by rate limit", "RESOURCE_EXHAUSTED")
                reply = answer(request)
                return await reply if isinstance(reply, Awaitable) else reply
            except Refusal as refusal:
                error = str(refusal)
                await context.abort(grpc.StatusCode[refusal.code], error)
                raise
            finally:
                if self._asked is not None:
                    self._asked(name, error)

        return serve


def _streaming(answers: Callable[[Any], AsyncIterator[Message]]) -> Any:
    async def serve(request: Any, context: Any) -> AsyncIterator[Message]:
        try:
            async for answer in answers(request):
                yield answer
        except Refusal as refusal:
            await context.abort(grpc.StatusCode[refusal.code], str(refusal))

    return serve


def _encode(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


_NO_NODE: Final = -1


@attrs.define(kw_only=True, eq=False)
class PodResources:
    """The pod-resources API of one life of a kubelet: who holds which device.

    One entry for each device, and for a device with several NUMA nodes one for each of them. Sidecars are listed, plain
    init containers are not. List and Get know the pods that this kubelet has heard of since its start; nobody's UID is
    told. List frees the devices of finished pods, as it does in the real one.

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
            "v1.PodResourcesLister",
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


_BACKLOG: Final = 100
"""Events by which a watcher may be behind before it is thrown out."""


class PodsApi:
    """The pods API of 1.37 (``pods/v1alpha1``) of one life of a kubelet: which pods there are.

    Each pod is a serialised core/v1 Pod; what is written of it is what has to do with devices: names and UID, the
    containers with their limits, and the phase. The numbers of the fields are those of ``k8s.io/api/core/v1``.

    Args:
        pods: The pods that it knows, with their phases.
        is_ready: Whether it has heard all its sources of pods.
    """

    def __init__(self, pods: Callable[[], Iterable[tuple[Pod, str]]], is_ready: Callable[[], bool]) -> None:
        self._pods = pods
        self._is_ready = is_ready
        self._watchers: list[MemoryObjectSendStream[v1alpha1.WatchPodsEvent]] = []

    def server(self, path: Path) -> ApiServer:
        """Return the server for this socket."""
        return ApiServer(
            path,
            "v1alpha1.Pods",
            {"ListPods": (v1alpha1.ListPodsRequest, self._list), "GetPod": (v1alpha1.GetPodRequest, self._get)},
            {"WatchPods": (v1alpha1.WatchPodsRequest, self._watch)},
        )

    def updated(self, pod: Pod, phase: str, *, is_new: bool) -> None:
        """Tell the watchers that the pod has this phase now."""
        self._tell(v1alpha1.ADDED if is_new else v1alpha1.MODIFIED, encode_pod(pod, phase))

    def removed(self, pod: Pod) -> None:
        """Tell the watchers that the pod is gone: its names and UID, nothing else."""
        self._tell(v1alpha1.DELETED, _metadata(pod) + _field(2, b"") + _field(3, b""))

    def _tell(self, kind: v1alpha1.EventType.ValueType, encoded: bytes) -> None:
        event = v1alpha1.WatchPodsEvent(type=kind, pod=encoded)
        for watcher in list(self._watchers):
            try:
                watcher.send_nowait(event)
            except anyio.WouldBlock:  # it is too far behind, and then it is over
                watcher.close()
                self._watchers.remove(watcher)

    def _check_ready(self) -> None:
        if not self._is_ready():
            raise Refusal("Kubelet is initializing", "FAILED_PRECONDITION")

    def _known(self) -> list[tuple[Pod, str]]:
        return sorted(self._pods(), key=lambda known: known[0].uid)

    def _list(self, request: v1alpha1.ListPodsRequest) -> v1alpha1.ListPodsResponse:
        self._check_ready()
        return v1alpha1.ListPodsResponse(pods=[encode_pod(pod, phase) for pod, phase in self._known()])

    def _get(self, request: v1alpha1.GetPodRequest) -> v1alpha1.GetPodResponse:
        self._check_ready()
        for pod, phase in self._known():
            if pod.uid == request.podUID:
                return v1alpha1.GetPodResponse(pod=encode_pod(pod, phase))
        raise Refusal(f"pod with UID {request.podUID} not found", "NOT_FOUND")

    async def _watch(self, request: v1alpha1.WatchPodsRequest) -> AsyncIterator[v1alpha1.WatchPodsEvent]:
        self._check_ready()
        watcher, events = anyio.create_memory_object_stream[v1alpha1.WatchPodsEvent](_BACKLOG)
        self._watchers.append(watcher)
        try:
            with watcher, events:
                for pod, phase in self._known():
                    yield v1alpha1.WatchPodsEvent(type=v1alpha1.ADDED, pod=encode_pod(pod, phase))
                yield v1alpha1.WatchPodsEvent(type=v1alpha1.INITIAL_SYNC_COMPLETE)
                async for event in events:
                    yield event
        finally:
            if watcher in self._watchers:
                self._watchers.remove(watcher)
        raise Refusal("watch client channel closed", "RESOURCE_EXHAUSTED")


def encode_pod(pod: Pod, phase: str) -> bytes:
    """Write a core/v1 Pod."""
    containers = [
        _field(number, _container(container))
        for number, group in ((2, pod.containers), (20, pod.init_containers))
        for container in group
    ]
    return _metadata(pod) + _field(2, b"".join(containers)) + _field(3, _text(1, phase))


def _metadata(pod: Pod) -> bytes:
    return _field(1, _text(1, pod.name) + _text(3, pod.namespace) + _text(5, pod.uid))


def _container(container: Container) -> bytes:
    quantities = [
        # Requests of extended resources equal their limits.
        (number, _text(1, resource) + _field(2, _text(1, str(count))))
        for number in (1, 2)
        for resource, count in sorted(container.limits.items())
    ]
    restarts = _text(24, "Always") if container.restartable else b""
    resources = _field(8, b"".join(_field(number, entry) for number, entry in quantities))
    return _text(1, container.name) + resources + restarts


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode())


def _field(number: int, value: bytes) -> bytes:
    """Write a field that has a length: a text, or a message within."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
