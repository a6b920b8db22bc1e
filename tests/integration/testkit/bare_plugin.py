"""A device plugin in bare grpc.aio, without kdp's own plugin: the peer that the simulated kubelet is tested with."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio

from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1
from kdp.proto import pluginregistration_v1_pb2 as registration
from kdp_testkit.patience import PATIENCE

RESOURCE = "example.com/widget"
RUBBISH = b"\xff\xff\xff\xffrubbish"
_names = itertools.count(1)


class BarePlugin:
    """Serves one resource; everything that a test wants to be different is an attribute or a method."""

    def __init__(
        self,
        directory: Path,
        *,
        resource: str = RESOURCE,
        devices: dict[str, str] | None = None,
        endpoint: str | None = None,
        options: v1beta1.DevicePluginOptions | None = None,
    ) -> None:
        self.directory = directory
        self.resource = resource
        self.devices = {"w0": "Healthy", "w1": "Healthy"} if devices is None else devices
        self.endpoint = endpoint or f"bare-{next(_names)}.sock"
        self.options = options or v1beta1.DevicePluginOptions()
        self.calls: list[tuple[str, Any]] = []
        self.before_options: Callable[[], Awaitable[None]] | None = None
        self.on_allocate: Callable[[v1beta1.AllocateRequest], Awaitable[v1beta1.AllocateResponse]] | None = None
        self.pre_start_error = ""
        self.rubbish: set[str] = set()
        """Methods whose answers are no messages."""
        self.info = registration.PluginInfo(type="DevicePlugin", name=resource, supported_versions=["v1beta1"])
        self.notified: list[tuple[bool, str]] = []
        self.streams = 0
        self._changed = anyio.Event()
        self._noticed = anyio.Event()
        self._ending = False
        self._server: grpc.aio.Server | None = None

    @property
    def path(self) -> Path:
        return self.directory / self.endpoint

    async def serve(self) -> None:
        self._ending = False
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        unary = grpc.unary_unary_rpc_method_handler
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetDevicePluginOptions": unary(
                self._options, v1beta1.Empty.FromString, self._written("GetDevicePluginOptions")
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._watch, v1beta1.Empty.FromString, self._written("ListAndWatch")
            ),
            "Allocate": unary(self._allocate, v1beta1.AllocateRequest.FromString, self._written("Allocate")),
            "PreStartContainer": unary(
                self._pre_start,
                v1beta1.PreStartContainerRequest.FromString,
                v1beta1.PreStartContainerResponse.SerializeToString,
            ),
        }
        watched: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetInfo": unary(self._info, registration.InfoRequest.FromString, self._written("GetInfo")),
            "NotifyRegistrationStatus": unary(
                self._notified,
                registration.RegistrationStatus.FromString,
                registration.RegistrationStatusResponse.SerializeToString,
            ),
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),
                grpc.method_handlers_generic_handler("pluginregistration.Registration", watched),
            )
        )
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    def _written(self, method: str) -> Callable[[Any], bytes]:
        def write(message: Any) -> bytes:
            return RUBBISH if method in self.rubbish else bytes(message.SerializeToString())

        return write

    async def register(
        self,
        kubelet_socket: Path,
        *,
        version: str = "v1beta1",
        endpoint: str | None = None,
        resource: str | None = None,
        deadline: float | None = 20.0,
    ) -> str | None:
        """Call Register; return None if it was accepted, else the error's text."""
        request = v1beta1.RegisterRequest(
            version=version,
            endpoint=self.endpoint if endpoint is None else endpoint,
            resource_name=self.resource if resource is None else resource,
            options=self.options,
        )
        async with grpc.aio.insecure_channel(
            f"unix:{kubelet_socket}", options=(("grpc.use_local_subchannel_pool", 1),)
        ) as channel:
            call: Any = channel.unary_unary(
                "/v1beta1.Registration/Register", v1beta1.RegisterRequest.SerializeToString, v1beta1.Empty.FromString
            )
            try:
                await call(request, timeout=deadline)
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"
        return None

    def change(self, devices: dict[str, str]) -> None:
        """Send this list on every stream."""
        self.devices = devices
        self._wake()

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(PATIENCE):
            while not condition():
                await self._noticed.wait()

    def end_streams(self) -> None:
        """End every stream cleanly; the server stays."""
        self._ending = True
        self._wake()

    async def stop(self) -> None:
        if self._server is not None:
            self.end_streams()
            await self._server.stop(None)
            self._server = None

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _notice(self) -> None:
        noticed, self._noticed = self._noticed, anyio.Event()
        noticed.set()

    async def _options(self, request: v1beta1.Empty, context: Any) -> v1beta1.DevicePluginOptions:
        self.calls.append(("options", None))
        if self.before_options is not None:
            await self.before_options()
        return self.options

    async def _watch(self, request: v1beta1.Empty, context: Any) -> AsyncIterator[v1beta1.ListAndWatchResponse]:
        self.streams += 1
        self._notice()
        try:
            while not self._ending:
                changed = self._changed
                yield v1beta1.ListAndWatchResponse(
                    devices=[v1beta1.Device(ID=id_, health=health) for id_, health in self.devices.items()]
                )
                await changed.wait()
        finally:
            self.streams -= 1
            self._notice()

    async def _allocate(self, request: v1beta1.AllocateRequest, context: Any) -> v1beta1.AllocateResponse:
        asked = [sorted(container.devices_ids) for container in request.container_requests]
        self.calls.append(("allocate", asked))
        if self.on_allocate is not None:
            return await self.on_allocate(request)
        for ids in asked:
            unknown = set(ids) - set(self.devices)
            if unknown:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unknown device {min(unknown)}")
        return v1beta1.AllocateResponse(
            container_responses=[
                v1beta1.ContainerAllocateResponse(
                    envs={"WIDGETS": ",".join(ids)},
                    devices=[
                        v1beta1.DeviceSpec(container_path=f"/dev/{i}", host_path=f"/dev/{i}", permissions="rw")
                        for i in ids
                    ],
                    mounts=[v1beta1.Mount(container_path="/lib/widget", host_path="/opt/widget", read_only=True)],
                    annotations={"example.com/widget": "yes"},
                    cdi_devices=[v1beta1.CDIDevice(name=f"example.com/widget={i}") for i in ids],
                )
                for ids in asked
            ]
        )

    async def _pre_start(
        self, request: v1beta1.PreStartContainerRequest, context: Any
    ) -> v1beta1.PreStartContainerResponse:
        self.calls.append(("pre_start", sorted(request.devices_ids)))
        if self.pre_start_error:
            await context.abort(grpc.StatusCode.INTERNAL, self.pre_start_error)
        return v1beta1.PreStartContainerResponse()

    async def _info(self, request: registration.InfoRequest, context: Any) -> registration.PluginInfo:
        self.calls.append(("info", None))
        return self.info

    async def _notified(
        self, request: registration.RegistrationStatus, context: Any
    ) -> registration.RegistrationStatusResponse:
        self.notified.append((request.plugin_registered, request.error))
        self._notice()
        return registration.RegistrationStatusResponse()
