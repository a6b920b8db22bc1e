"""The kubelet's Registration service: a gRPC server behind the front door.

It only carries calls: every request goes to one callback, which answers with a refusal or None. Cancelling that
callback is how a plugin's deadline or its lost connection reaches the kubelet.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from kdp.kubelet.server import start_server, stop_server
from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1

from .wire import PluginOptions

if TYPE_CHECKING:
    from pathlib import Path

_SERVICE = "v1beta1.Registration"


class Refusal(Exception):
    """Answer Register with this gRPC status."""

    def __init__(self, text: str, code: str = "UNKNOWN") -> None:
        super().__init__(text)
        self.code = code


def joined_path(directory: Path, endpoint: str) -> str:
    """Join as Go's filepath.Join does: ``..`` is resolved in the text, and nothing escapes by being absolute."""
    return os.path.normpath(f"{directory}/{endpoint}")


_Register = Callable[[str, str, str, PluginOptions], Awaitable[None]]


class RegistryServer:
    """The server of one life of a kubelet.

    Args:
        address: Abstract unix address to listen on, without its leading NUL.
        register: Called with version, endpoint, resource name and options of each request; raises `Refusal`.
    """

    def __init__(self, address: str, register: _Register) -> None:
        self._register = register
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        handler = grpc.unary_unary_rpc_method_handler(
            self._serve,
            request_deserializer=v1beta1.RegisterRequest.FromString,
            response_serializer=v1beta1.Empty.SerializeToString,
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Register": handler}),))
        self._server.add_insecure_port("unix-abstract:" + address)

    async def _serve(
        self,
        request: v1beta1.RegisterRequest,
        context: grpc.aio.ServicerContext[v1beta1.RegisterRequest, v1beta1.Empty],
    ) -> v1beta1.Empty:
        options = PluginOptions(
            pre_start_required=request.options.pre_start_required,
            preferred_allocation_available=request.options.get_preferred_allocation_available,
        )
        try:
            await self._register(request.version, request.endpoint, request.resource_name, options)
        except Refusal as refusal:
            await context.abort(grpc.StatusCode[refusal.code], str(refusal))
        return v1beta1.Empty()

    async def start(self) -> None:
        """Serve from now on."""
        await start_server(self._server)

    async def stop(self) -> None:
        """Stop at once; calls in progress are cancelled. Idempotent."""
        await stop_server(self._server, None)
