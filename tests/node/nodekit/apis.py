"""Clients of the kubelet's local APIs in bare gRPC, and what they are told in words that can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio

from kdp.proto import podresources_v1_pb2 as podresources
from kdp.proto import pods_v1alpha1_pb2 as pods

__all__ = ["PodWatch", "pod_resources", "pods_api"]

_POD_RESOURCES: Mapping[str, tuple[Any, Any]] = {
    "List": (podresources.ListPodResourcesRequest, podresources.ListPodResourcesResponse),
    "Get": (podresources.GetPodResourcesRequest, podresources.GetPodResourcesResponse),
    "GetAllocatableResources": (podresources.AllocatableResourcesRequest, podresources.AllocatableResourcesResponse),
}
_PODS: Mapping[str, tuple[Any, Any]] = {
    "ListPods": (pods.ListPodsRequest, pods.ListPodsResponse),
    "GetPod": (pods.GetPodRequest, pods.GetPodResponse),
}
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 16 << 20))


async def pod_resources(socket: Path, method: str, calls: int, **fields: str) -> str:
    """Call the pod-resources API, and return what it said; of many calls at once only which answers there were."""
    return await _asked(socket, f"/v1.PodResourcesLister/{method}", *_POD_RESOURCES[method], calls, fields)


async def pods_api(socket: Path, method: str, calls: int, **fields: str) -> str:
    """Call the pods API; as `pod_resources`."""
    if not is_there(socket):
        return "there is no pods API"
    return await _asked(socket, f"/v1alpha1.Pods/{method}", *_PODS[method], calls, fields)


async def _asked(socket: Path, method: str, request: Any, response: Any, calls: int, fields: Mapping[str, str]) -> str:
    answers: Counter[str] = Counter()
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS) as channel:
        call: Any = channel.unary_unary(
            method, request_serializer=request.SerializeToString, response_deserializer=response.FromString
        )

        async def ask() -> None:
            try:
                said = _told(await call(request(**fields), timeout=30.0))
            except grpc.aio.AioRpcError as error:
                said = f"{error.code().name}: {error.details()}"
            answers[said] += 1

        # A bucket of tokens that was used before is full again.
        await anyio.sleep(0.2)
        async with anyio.create_task_group() as tasks:
            for _ in range(calls):
                tasks.start_soon(ask)
    return " | ".join(sorted(answers))


def _told(answer: Any) -> str:
    match answer:
        case podresources.ListPodResourcesResponse():
            return "; ".join(sorted(map(_pod, answer.pod_resources))) or "no pods"
        case podresources.GetPodResourcesResponse():
            return _pod(answer.pod_resources)
        case podresources.AllocatableResourcesResponse():
            return _devices(answer.devices)
        case pods.ListPodsResponse():
            return "; ".join(map(pod_text, answer.pods)) or "no pods"
        case _:
            return pod_text(answer.pod)


def _pod(pod: podresources.PodResources) -> str:
    containers = (f"{container.name} [{_devices(container.devices)}]" for container in pod.containers)
    return f"{pod.namespace}/{pod.name}: {' '.join(containers)}"


def _devices(entries: Any) -> str:
    said = (
        f"{entry.resource_name} {list(entry.device_ids)}"
        + (f" on {[node.ID for node in entry.topology.nodes]}" if entry.HasField("topology") else "")
        for entry in entries
    )
    return ", ".join(sorted(said)) or "nothing"


def is_there(socket: Path) -> bool:
    return socket.exists()


class PodWatch:
    """One WatchPods, and what it has said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def run(self, socket: Path) -> None:
        """Read until cancelled."""
        if not is_there(socket):
            self.said.append("there is no pods API")
            return
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS) as channel:
            call: Any = channel.unary_stream(
                "/v1alpha1.Pods/WatchPods",
                request_serializer=pods.WatchPodsRequest.SerializeToString,
                response_deserializer=pods.WatchPodsEvent.FromString,
            )
            try:
                async for event in call(pods.WatchPodsRequest()):
                    name = pods.EventType.Name(event.type)
                    self.said.append(f"{name} {pod_text(event.pod)}" if event.pod else name)
            except grpc.aio.AioRpcError as error:
                self.said.append(f"{error.code().name}: {error.details()}")


def pod_text(encoded: bytes) -> str:
    """Return what kdp reads of a serialised core/v1 Pod: names, containers with limits, phase."""
    metadata, spec, status = (_one(encoded, number) for number in (1, 2, 3))
    named = "/".join(_one(metadata, number).decode() for number in (3, 1, 5))
    containers = [
        f"{title}{_one(each, 1).decode()}{'*' if _one(each, 24) == b'Always' else ''} {_quantities(_one(each, 8))}"
        for title, number in (("init ", 20), ("", 2))
        for each in _all(spec, number)
    ]
    return f"{named} {', '.join(containers)} {_one(status, 1).decode()}"


def _quantities(resources: bytes) -> dict[str, dict[str, str]]:
    return {
        name: {_one(entry, 1).decode(): _one(_one(entry, 2), 1).decode() for entry in _all(resources, number)}
        for name, number in (("limits", 1), ("requests", 2))
        if _all(resources, number)
    }


def _one(message: bytes, number: int) -> bytes:
    return next(iter(_all(message, number)), b"")


def _all(message: bytes, number: int) -> list[bytes]:
    """Return the fields of this number that have a length; the others are passed over."""
    found: list[bytes] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = varint()
        match tag & 7:
            case 0:
                varint()
            case 1:
                at += 8
            case 2:
                length = varint()
                if tag >> 3 == number:
                    found.append(message[at : at + length])
                at += length
            case _:
                at += 4
    return found
