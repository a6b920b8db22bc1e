"""The model in protobuf and back: the only module that does it.

Its functions are the (de)serializers of the gRPC methods, so that no protobuf type leaves this file but the reply of
one container. The device list is encoded piece by piece, so that one device's change costs one device's bytes.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import attrs

from ..errors import InvalidValueError
from ..model.edits import check_environment
from ..proto import deviceplugin_v1beta1_pb2 as pb
from ..startup import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..hardware import Host
    from ..model.devices import Device
    from ..model.edits import ContainerEdits

API_VERSION = "v1beta1"
"""The only version that a kubelet accepts, compared as text (contract section 0.1)."""

ContainerReply = pb.ContainerAllocateResponse

_HEALTHY, _UNHEALTHY = "Healthy", "Unhealthy"


@attrs.frozen
class PluginOptions:
    """What the kubelet may call; follows from the hooks that the vendor wrote."""

    __repr__ = shown

    pre_start_required: bool
    preferred_allocation: bool


@attrs.frozen
class PreferQuery:
    """One container's question in GetPreferredAllocation."""

    __repr__ = shown

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


def encode_device(device: Device, with_topology: bool) -> bytes:
    """Return one device's bytes inside a ListAndWatchResponse; NUMA node 0 is explicit (contract section 8).

    Put together by hand, in a fraction of the time that a message takes: of ten thousand devices each one counts.
    """
    body = _first(device.id.encode()) + (_IS_HEALTHY if device.health.is_healthy else _IS_UNHEALTHY)
    if with_topology and device.numa_nodes:
        body += _topology(device.numa_nodes)
    return _first(body)


_IS_HEALTHY = pb.Device(health=_HEALTHY).SerializeToString()
_IS_UNHEALTHY = pb.Device(health=_UNHEALTHY).SerializeToString()


@functools.lru_cache(maxsize=64)
def _topology(numa_nodes: tuple[int, ...]) -> bytes:
    nodes = [pb.NUMANode(ID=node) for node in numa_nodes]
    return pb.Device(topology=pb.TopologyInfo(nodes=nodes)).SerializeToString()


_FIRST = 1 << 3 | 2
"""The tag of ``devices`` in a ListAndWatchResponse and of ``ID`` in a Device: field 1, with a length."""

_SHORT = tuple(bytes((_FIRST, size)) for size in range(128))


def _first(data: bytes) -> bytes:
    """Return field 1 with this in it."""
    size = len(data)  # always below 2^14, two groups of seven bits
    return (_SHORT[size] if size < 128 else bytes((_FIRST, size & 127 | 128, size >> 7))) + data


def worst_case_bytes(piece: bytes, healthy: bool) -> int:
    """Return how long an encoded device is when it is Unhealthy: two bytes more, and perhaps a longer length field."""
    if not healthy:
        return len(piece)
    body = len(piece) - (2 if len(piece) < 2 + 128 else 3) + len(_UNHEALTHY) - len(_HEALTHY)
    return 1 + (1 if body < 128 else 2) + body


def decode_allocate(data: bytes) -> tuple[tuple[str, ...], ...]:
    """Return the device ids of each container request."""
    return tuple(tuple(request.devices_ids) for request in pb.AllocateRequest.FromString(data).container_requests)


def encode_allocate(replies: Iterable[ContainerReply]) -> bytes:
    """Return the answer to Allocate: one reply for each container request, in order."""
    return pb.AllocateResponse(container_responses=replies).SerializeToString()


def check_renderable(edits: ContainerEdits) -> None:
    """Refuse what Allocate's reply cannot carry.

    Raises:
        InvalidValueError: There are OCI hooks.
    """
    if edits.hooks:
        raise InvalidValueError(
            f"OCI hook {edits.hooks[0].path}: Allocate's reply cannot carry it, only a CDI spec can; run the plugin "
            "with --cdi beside or --cdi only, and give the hook to the device's own edits"
        )


def render(edits: ContainerEdits, host: Host) -> ContainerReply:
    """Return the reply for one container. Blocks for a few stat(2) calls on paths of the node.

    A link to a device node stays a link: the kubelet gives the reply again at each start of the container, and the
    runtime resolves it then (containerd and CRI-O do).

    Raises:
        InvalidValueError: A node or a mount's source is not there, or the reply cannot carry the edits.
        AllocationError: No program can be started with the variables.
    """
    check_renderable(edits)
    check_environment(edits.env)
    reply = ContainerReply()
    for name, text in edits.env.items():  # a mapping handed over whole takes protobuf four times as long
        reply.envs[name] = text
    for name, text in edits.annotations.items():
        reply.annotations[name] = text
    for name in edits.cdi_devices:
        reply.cdi_devices.add(name=name)
    for node in edits.device_nodes:
        host.device_node(node.host_path)
        reply.devices.add(container_path=node.container_path, host_path=node.host_path, permissions=node.permissions)
    for mount in edits.mounts:
        if (fault := host.mount_fault(mount.host_path)) is not None:
            raise InvalidValueError(f"{fault}; the runtime would put an empty directory there")
        reply.mounts.add(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
    return reply


def encode_options(options: PluginOptions) -> bytes:
    """Return a DevicePluginOptions."""
    return _options(options).SerializeToString()


def _options(options: PluginOptions) -> pb.DevicePluginOptions:
    return pb.DevicePluginOptions(
        pre_start_required=options.pre_start_required, get_preferred_allocation_available=options.preferred_allocation
    )


def decode_prefer(data: bytes) -> tuple[PreferQuery, ...]:
    """Return the question of each container request."""
    return tuple(
        PreferQuery(tuple(r.available_deviceIDs), tuple(r.must_include_deviceIDs), r.allocation_size)
        for r in pb.PreferredAllocationRequest.FromString(data).container_requests
    )


def encode_prefer(answers: Iterable[Sequence[str]]) -> bytes:
    """Return the answer to GetPreferredAllocation; an empty list means "no opinion"."""
    return pb.PreferredAllocationResponse(
        container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in answers]
    ).SerializeToString()


def decode_pre_start(data: bytes) -> tuple[str, ...]:
    """Return the device ids of a container that is about to start."""
    return tuple(pb.PreStartContainerRequest.FromString(data).devices_ids)


def decode_nothing(data: bytes) -> None:
    """Take a request without fields."""


def encode_nothing(_: None) -> bytes:
    """Return a reply without fields."""
    return b""


def encode_register(endpoint: str, resource: str, options: PluginOptions) -> bytes:
    """Return a RegisterRequest; its options equal those of GetDevicePluginOptions (contract section 1.1)."""
    return pb.RegisterRequest(
        version=API_VERSION, endpoint=endpoint, resource_name=resource, options=_options(options)
    ).SerializeToString()
