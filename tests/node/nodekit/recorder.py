"""`Recorder`: a device plugin in bare gRPC that answers as a scenario tells it and writes down every call.

It is the peer for comparing kubelets: kdp's own plugin would mend what the kubelet does, and hide it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import attrs
import grpc
import grpc.aio

from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1
from kdp.proto import pluginregistration_v1_pb2 as registration

__all__ = ["Call", "Listed", "Recorder", "Refused"]


@attrs.frozen
class Call:
    """One call of the kubelet.

    Attributes:
        plugin: Which plugin got it: its socket's name.
        name: The method.
        arguments: What it said, ids sorted.
    """

    plugin: str
    name: str
    arguments: Mapping[str, object] = attrs.field(factory=dict[str, object])


@attrs.frozen
class Listed:
    """One entry of a list."""

    id: str
    health: str = "Healthy"
    numa_nodes: tuple[int, ...] | None = None

    def encoded(self) -> v1beta1.Device:
        device = v1beta1.Device(ID=self.id, health=self.health)
        if self.numa_nodes is not None:
            device.topology.CopyFrom(v1beta1.TopologyInfo(nodes=[v1beta1.NUMANode(ID=n) for n in self.numa_nodes]))
        return device


class Refused(Exception):
    """What a scenario raises in place of an answer: the status that the kubelet gets."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


_Replies = Sequence[v1beta1.ContainerAllocateResponse]


class Recorder:
    """One plugin at one socket.

    Attributes:
        calls: Where the calls are written down; may be shared with other plugins.
        devices: What its next list says.
        options: What GetDevicePluginOptions answers.
        allocate: Answers Allocate: the ids of each container to the replies; may raise `Refused`.
        prefer: Answers GetPreferredAllocation: available, must_include, size to ids; may raise `Refused`.
        pre_start: Called by PreStartContainer; may raise `Refused`.
        info: What GetInfo answers.
    """

    def __init__(self, directory: Path, name: str, *, resource: str, calls: list[Call]) -> None:
        self.directory = directory
        self.name = name
        self.resource = resource
        self.calls = calls
        self.devices: list[Listed] = [Listed("w0"), Listed("w1")]
        self.options: dict[str, bool] = {}
        self.options_error: Refused | None = None
        self.allocate: Callable[[list[list[str]]], _Replies | Awaitable[_Replies]] = replies
        self.prefer: Callable[[list[str], list[str], int], Sequence[str]] = lambda available, must, size: []
        self.pre_start: Callable[[list[str]], None] = lambda ids: None
        self.info = registration.PluginInfo(type="DevicePlugin", name=resource, supported_versions=["v1beta1"])
        self.notify_error: Refused | None = None
        self.streams = 0
        self._sent: anyio.Event | None = None
        self._changed = anyio.Event()
        self._ending = False
        self._server: grpc.aio.Server | None = None

    @property
    def path(self) -> Path:
        """Where it listens."""
        return self.directory / self.name

    async def serve(self) -> None:
        """Listen; nobody knows of it before `register`."""
        self._ending = False
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        plugin: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetDevicePluginOptions": _unary(self._options, v1beta1.Empty),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._watch, v1beta1.Empty.FromString, _encode),
            "Allocate": _unary(self._allocate, v1beta1.AllocateRequest),
            "GetPreferredAllocation": _unary(self._prefer, v1beta1.PreferredAllocationRequest),
            "PreStartContainer": _unary(self._pre_start, v1beta1.PreStartContainerRequest),
        }
        watched: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetInfo": _unary(self._info, registration.InfoRequest),
            "NotifyRegistrationStatus": _unary(self._notified, registration.RegistrationStatus),
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", plugin),
                grpc.method_handlers_generic_handler("pluginregistration.Registration", watched),
            )
        )
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    async def register(self, kubelet_socket: Path, **fields: str) -> str:
        """Call Register; return ``ok`` or the error's code and text."""
        request = v1beta1.RegisterRequest(
            version=fields.get("version", "v1beta1"),
            endpoint=fields.get("endpoint", self.name),
            resource_name=fields.get("resource", self.resource),
            options=v1beta1.DevicePluginOptions(**self.options),
        )
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(f"unix:{kubelet_socket}", options=options) as channel:
            call: Any = channel.unary_unary("/v1beta1.Registration/Register", _encode, v1beta1.Empty.FromString)
            try:
                await call(request, timeout=30.0)
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"
        return "ok"

    def change(self, *devices: Listed) -> None:
        """Send this list on every stream."""
        self.devices = list(devices)
        self._wake()

    def end_streams(self) -> None:
        """End every stream cleanly; the server stays, and later streams live."""
        self._ending = True
        self._wake()

    async def stop(self) -> None:
        """End streams and server; grpc removes the socket."""
        if self._server is not None:
            self.end_streams()
            await self._server.stop(0.2)
            self._server = None

    async def kill(self) -> None:
        """End without ending anything: connections break."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    @property
    def has_sent(self) -> bool:
        """Whether a stream, if there is one, has sent the newest list."""
        return not self.streams or self._sent is self._changed

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _wrote(self, name: str, **arguments: object) -> None:
        self.calls.append(Call(self.name, name, arguments))

    # -- the calls -----------------------------------------------------------------------------------------------------

    async def _options(self, request: Any, context: Any) -> v1beta1.DevicePluginOptions:
        self._wrote("GetDevicePluginOptions")
        await _refuse(context, self.options_error)
        return v1beta1.DevicePluginOptions(**self.options)

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[v1beta1.ListAndWatchResponse]:
        self._wrote("ListAndWatch")
        self._ending = False
        self.streams += 1
        try:
            while not self._ending:
                changed = self._changed
                yield v1beta1.ListAndWatchResponse(devices=[device.encoded() for device in self.devices])
                self._sent = changed
                await changed.wait()
        finally:
            self.streams -= 1

    async def _allocate(self, request: v1beta1.AllocateRequest, context: Any) -> v1beta1.AllocateResponse:
        asked = [sorted(container.devices_ids) for container in request.container_requests]
        self._wrote("Allocate", containers=asked)
        try:
            answer = self.allocate(asked)
            return v1beta1.AllocateResponse(
                container_responses=await answer if isinstance(answer, Awaitable) else answer
            )
        except Refused as refused:
            await _refuse(context, refused)
            raise AssertionError("unreachable") from refused

    async def _prefer(self, request: v1beta1.PreferredAllocationRequest, context: Any) -> Any:
        answers: list[Sequence[str]] = []
        for container in request.container_requests:
            available, must = sorted(container.available_deviceIDs), sorted(container.must_include_deviceIDs)
            self._wrote(
                "GetPreferredAllocation", available=available, must_include=must, size=container.allocation_size
            )
            try:
                answers.append(self.prefer(available, must, container.allocation_size))
            except Refused as refused:
                await _refuse(context, refused)
        return v1beta1.PreferredAllocationResponse(
            container_responses=[v1beta1.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in answers]
        )

    async def _pre_start(self, request: v1beta1.PreStartContainerRequest, context: Any) -> Any:
        has_deadline = context.time_remaining() is not None
        self._wrote("PreStartContainer", ids=sorted(request.devices_ids), has_deadline=has_deadline)
        try:
            self.pre_start(sorted(request.devices_ids))
        except Refused as refused:
            await _refuse(context, refused)
        return v1beta1.PreStartContainerResponse()

    async def _info(self, request: Any, context: Any) -> registration.PluginInfo:
        self._wrote("GetInfo")
        return self.info

    async def _notified(self, request: registration.RegistrationStatus, context: Any) -> Any:
        self._wrote("NotifyRegistrationStatus", registered=request.plugin_registered, error=request.error)
        await _refuse(context, self.notify_error)
        return registration.RegistrationStatusResponse()


def replies(asked: list[list[str]]) -> list[v1beta1.ContainerAllocateResponse]:
    """Answer with something of everything that a reply can carry."""
    return [
        v1beta1.ContainerAllocateResponse(
            envs={"WIDGETS": str(len(ids))},
            mounts=[v1beta1.Mount(container_path="/lib/widget", host_path="/opt/widget", read_only=True)],
            devices=[
                v1beta1.DeviceSpec(container_path=f"/dev/{i}", host_path=f"/dev/{i}", permissions="rw") for i in ids
            ],
            annotations={"example.com/widget": "yes"},
            cdi_devices=[v1beta1.CDIDevice(name=f"example.com/widget={i}") for i in ids],
        )
        for ids in asked
    ]


def _unary(method: Any, request: Any) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(method, request.FromString, _encode)


def _encode(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


async def _refuse(context: Any, refused: Refused | None) -> None:
    if refused is not None:
        await context.abort(refused.code, refused.text)
