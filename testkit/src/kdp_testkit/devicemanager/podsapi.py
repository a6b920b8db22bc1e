"""The pods API of 1.37 (``pods/v1alpha1``), as the kubelet answers it: which pods there are (contract section 10).

Each pod is a serialised core/v1 Pod; what is written of it here is what has to do with devices: names and UID, the
containers with their limits, and the phase. The numbers of the fields are those of ``k8s.io/api/core/v1``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from kdp.proto.pods.v1alpha1 import api_pb2 as v1alpha1

from ..protocol.registry import Refusal
from .nodeapi import ApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    from anyio.streams.memory import MemoryObjectSendStream

    from ..protocol.pods import Container, Pod

_SERVICE: Final = "v1alpha1.Pods"
_BACKLOG: Final = 100
"""Events by which a watcher may be behind before it is thrown out."""


class PodsApi:
    """The answers of one life of a kubelet.

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
            _SERVICE,
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
