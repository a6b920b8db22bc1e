"""A DRA driver in bare grpc.aio, without kdp's own: the peer that the simulated and the real kubelet are tested with.

It records what it is asked, and answers as it is told: by default one device for each claim, with a CDI spec on
request.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self

import anyio
import grpc
import grpc.aio

from kdp.proto import dra_v1_pb2 as v1
from kdp.proto import dra_v1beta1_pb2 as v1beta1
from kdp.proto import drahealth_v1_pb2 as health
from kdp.proto import pluginregistration_v1_pb2 as registration

BOTH = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
_MESSAGES: dict[str, Any] = {"v1": v1, "v1beta1": v1beta1}


class RecordingDriver:
    """One instance of a driver; everything that a test wants to be different is an attribute.

    Args:
        driver: Its name.
        root: The kubelet's root directory, as this process sees it.
        seen_at: The same as the kubelet sees it.
        versions: What it advertises.
        instance: Part of its sockets' names; "": those of a driver that is alone.
        cdi: Where specs are written; None: nowhere.
    """

    def __init__(
        self,
        driver: str,
        root: Path,
        *,
        seen_at: Path | None = None,
        versions: Sequence[str] = BOTH,
        instance: str = "",
        cdi: Path | None = None,
    ) -> None:
        self.driver = driver
        self.versions = tuple(versions)
        data = root / "plugins" / driver
        data.mkdir(parents=True, exist_ok=True)
        name = f"dra-{instance}.sock" if instance else "dra.sock"
        self.service_socket = data / name
        self.endpoint = str((seen_at or root) / "plugins" / driver / name)
        self.registration_socket = (
            root / "plugins_registry" / (f"{driver}-{instance}-reg.sock" if instance else f"{driver}-reg.sock")
        )
        self.cdi = cdi
        self.calls: list[tuple[str, str, tuple[str, ...]]] = []
        """Method, version and the claims' names."""
        self.notified: list[tuple[bool, str]] = []
        self.health_streams: list[str] = []
        self.reports: list[health.NodeWatchResourcesResponse] = []
        """What each health stream is sent first."""
        self.health_code: grpc.StatusCode | None = None
        """How health streams end after that; None: they are held open."""
        self.errors: dict[str, str] = {}
        """By "METHOD CLAIM" its error."""
        self.skipped: set[str] = set()
        self.invents = False
        self.refuses: tuple[grpc.StatusCode, str] | None = None
        self.hangs = False
        self.suffix = ""
        """Of the CDI devices' names."""
        self.requests: tuple[str, ...] = ("r0",)
        self.share_id = ""
        """Of the devices, where the version knows shares."""
        self._servers: list[grpc.aio.Server] = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Serve, then be found."""
        await self.serve()
        self.registration_socket.unlink(missing_ok=True)
        self._servers.append(
            await _served(
                self.registration_socket,
                (
                    "pluginregistration.Registration",
                    {"GetInfo": self._info, "NotifyRegistrationStatus": self._notified},
                ),
                {"GetInfo": registration.InfoRequest, "NotifyRegistrationStatus": registration.RegistrationStatus},
            )
        )

    async def serve(self) -> None:
        """Serve without being found."""
        self.service_socket.unlink(missing_ok=True)
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        for version, messages in _MESSAGES.items():
            methods = {
                "NodePrepareResources": (self._prepare, messages.NodePrepareResourcesRequest),
                "NodeUnprepareResources": (self._unprepare, messages.NodeUnprepareResourcesRequest),
            }
            handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
                name: grpc.unary_unary_rpc_method_handler(
                    _for_version(answer, version), request.FromString, lambda reply: reply.SerializeToString()
                )
                for name, (answer, request) in methods.items()
            }
            service = f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin"
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        for version in ("v1", "v1alpha1"):
            watch: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
                _for_version(self._watch, version),
                health.NodeWatchResourcesRequest.FromString,
                lambda reply: reply.SerializeToString(),
            )
            handler = grpc.method_handlers_generic_handler(
                f"{version}.DRAResourceHealth", {"NodeWatchResources": watch}
            )
            server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{self.service_socket}")
        await server.start()
        self._servers.append(server)

    async def stop(self) -> None:
        """End both servers and remove their sockets."""
        while self._servers:
            await self._servers.pop().stop(None)
        self.registration_socket.unlink(missing_ok=True)
        self.service_socket.unlink(missing_ok=True)

    async def stop_serving(self) -> None:
        """End the service alone: the registration socket stays."""
        await self._servers.pop(0).stop(None)

    def methods(self) -> list[str]:
        """Return the calls in order, as "NodePrepareResources a,b"."""
        return [f"{method} {','.join(sorted(claims))}" for method, _, claims in self.calls]

    # -- registration --------------------------------------------------------------------------------------------------

    async def _info(self, _: Any, __: Any) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="DRAPlugin", name=self.driver, endpoint=self.endpoint, supported_versions=self.versions
        )

    async def _notified(
        self, request: registration.RegistrationStatus, _: Any
    ) -> registration.RegistrationStatusResponse:
        self.notified.append((request.plugin_registered, request.error))
        return registration.RegistrationStatusResponse()

    # -- the driver ----------------------------------------------------------------------------------------------------

    async def _asked(self, method: str, version: str, request: Any, context: Any) -> None:
        self.calls.append((method, version, tuple(claim.name for claim in request.claims)))
        if self.hangs:
            await anyio.sleep_forever()
        if self.refuses is not None:
            await context.abort(*self.refuses)

    async def _prepare(self, version: str, request: Any, context: Any) -> Any:
        await self._asked("NodePrepareResources", version, request, context)
        messages = _MESSAGES[version]
        reply = messages.NodePrepareResourcesResponse()
        for claim in request.claims:
            if claim.name in self.skipped:
                continue
            error = self.errors.get(f"NodePrepareResources {claim.name}", "")
            result = messages.NodePrepareResourceResponse(error=error)
            if not error:
                device = result.devices.add(request_names=self.requests, pool_name="pool", device_name=claim.name)
                device.cdi_device_ids.append(self._cdi_id(claim.name))
                if self.share_id and version == "v1":
                    device.share_id = self.share_id
            reply.claims[claim.uid].CopyFrom(result)
        if self.invents:
            reply.claims["invented"].CopyFrom(messages.NodePrepareResourceResponse())
        return reply

    async def _unprepare(self, version: str, request: Any, context: Any) -> Any:
        await self._asked("NodeUnprepareResources", version, request, context)
        messages = _MESSAGES[version]
        reply = messages.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            if claim.name not in self.skipped:
                error = self.errors.get(f"NodeUnprepareResources {claim.name}", "")
                reply.claims[claim.uid].CopyFrom(messages.NodeUnprepareResourceResponse(error=error))
        if self.invents:
            reply.claims["invented"].CopyFrom(messages.NodeUnprepareResourceResponse())
        return reply

    async def _watch(self, version: str, _: Any, context: Any) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        self.health_streams.append(version)
        for report in self.reports:
            yield report
        if self.health_code is not None:
            await context.abort(self.health_code, "as told")
        await anyio.sleep_forever()

    def _cdi_id(self, claim: str) -> str:
        name = claim + self.suffix
        if self.cdi is not None:
            devices = [{"name": name, "containerEdits": {"env": [f"DEVICE_{claim.upper().replace('-', '_')}={name}"]}}]
            spec = {"cdiVersion": "0.5.0", "kind": f"{self.driver}/device", "devices": devices}
            hidden = self.cdi / f".{self.driver}-{name}.json"
            hidden.write_text(json.dumps(spec))
            os.rename(hidden, self.cdi / f"{self.driver}-{name}.json")
        return f"{self.driver}/device={name}"


def _for_version(answer: Any, version: str) -> Any:
    if answer.__name__ == "_watch":

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            async for reply in answer(version, request, context):
                yield reply

        return stream

    async def unary(request: Any, context: Any) -> Any:
        return await answer(version, request, context)

    return unary


async def _served(socket: Path, service: tuple[str, dict[str, Any]], requests: dict[str, Any]) -> grpc.aio.Server:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: grpc.unary_unary_rpc_method_handler(
            answer, requests[name].FromString, lambda reply: reply.SerializeToString()
        )
        for name, answer in service[1].items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service[0], handlers),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    return server
