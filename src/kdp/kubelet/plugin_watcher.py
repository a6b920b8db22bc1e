"""Registration by the kubelet's plugin watcher, which finds a socket and asks what serves there.

It is the same service for device plugins and DRA drivers; they differ in the type and the versions that they announce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, final

import attrs
import grpc

from ..proto import pluginregistration_v1_pb2 as pb
from ..startup import shown

if TYPE_CHECKING:
    _Context = grpc.aio.ServicerContext[Any, Any]


@final
@attrs.frozen(kw_only=True)
class Registration:
    """Answers the plugin watcher for one plugin.

    Attributes:
        type: What the kubelet takes the plugin for.
        name: The name of the resource or driver.
        versions: The services that the plugin offers; of DRAPlugin a kubelet takes the first that it knows.
        endpoint: The path of the socket with the services; empty: this same socket (contract section 3).
        notified: Takes the kubelet's verdict: None, or why it did not register the plugin.
        asked: Called when the kubelet asks what the plugin is.
    """

    __repr__ = shown

    type: Literal["DevicePlugin", "DRAPlugin"]
    name: str
    versions: tuple[str, ...]
    endpoint: str = ""
    notified: Callable[[str | None], object]
    asked: Callable[[], object] = lambda: None

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service for a gRPC server."""
        return grpc.method_handlers_generic_handler(
            "pluginregistration.Registration",
            {
                "GetInfo": grpc.unary_unary_rpc_method_handler(self._get_info),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                    self._notify, pb.RegistrationStatus.FromString
                ),
            },
        )

    async def _get_info(self, _: bytes, context: _Context) -> bytes:
        self.asked()
        return pb.PluginInfo(
            type=self.type, name=self.name, endpoint=self.endpoint, supported_versions=self.versions
        ).SerializeToString()

    async def _notify(self, status: pb.RegistrationStatus, context: _Context) -> bytes:
        self.notified(None if status.plugin_registered else status.error or "it gave no reason")
        return b""
