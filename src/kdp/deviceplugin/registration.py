"""Register: by which name, in one attempt on one fresh channel, and what the answers mean (contract section 2).

A socket's name is never used twice, by no later generation and no other process: it holds a random token of the process
and the generation's number (contract section 2.5, B3). A socket is bound in a private directory and renamed when it
answers. So a visible name of ours that refuses connections is always a dead one (`kdp.kubelet.sockets`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import grpc

from ..errors import AlreadyConnectedError, RegistrationError, RegistrationRefusedError
from ..kubelet import KubeletState, look
from ..kubelet.server import unix_target
from ..kubelet.sockets import check_length, is_plugin_socket, plugin_prefix
from . import wire

if TYPE_CHECKING:
    from pathlib import Path

    from ..kubelet import KubeletPaths
    from ..kubelet.server import SocketServer

REGISTER_DEADLINE = 15.0
"""Seconds for the reply. It comes only after the kubelet has dialed us, for which it takes up to 10 s."""

_OPTIONS = [
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # A channel of its own for each attempt: an old one's back-off of up to 120 s must not be inherited.
    ("grpc.use_local_subchannel_pool", 1),
]


class SocketNames:
    """The names of one resource's sockets in one process.

    Raises:
        InvalidNameError: The directory's path leaves no room for a name.
    """

    def __init__(self, directory: Path, resource: str) -> None:
        self._directory = directory
        self.prefix = plugin_prefix(directory, resource)
        self._token = os.urandom(4).hex()
        check_length(self.path(999_999))

    def path(self, generation: int) -> Path:
        """Return the path of a generation's socket."""
        return self._directory / f"{self.prefix}{self._token}-{generation}.sock"

    def has_made(self, name: str) -> bool:
        """Return whether this is the name of a socket of this resource, of this process or another."""
        return is_plugin_socket(self.prefix, name)


def dial(paths: KubeletPaths) -> grpc.aio.Channel:
    """Begin to connect to the kubelet, for one attempt."""
    channel = grpc.aio.insecure_channel(unix_target(paths.kubelet_socket), options=_OPTIONS)
    channel.get_state(try_to_connect=True)
    return channel


async def register(
    dialed: grpc.aio.Channel, paths: KubeletPaths, server: SocketServer, resource: str, options: wire.PluginOptions
) -> None:
    """Tell the kubelet of this server, wait for its answer, and close the channel.

    Success is no proof: only an open stream is.

    Raises:
        RegistrationRefusedError: Waiting does not help: the name or the API version.
        AlreadyConnectedError: Only another socket name helps.
        RegistrationError: Anything else; try again.
    """
    async with dialed:
        if look(paths.kubelet_socket).state is not KubeletState.LISTENING:
            raise RegistrationError("the kubelet stopped listening before the plugin could register")
        # A kubelet removes all sockets before it makes its own: once it accepts connections, the cleanup is complete.
        if not server.is_in_place:
            raise RegistrationError("the plugin's own socket was removed before it could be registered")
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = dialed.unary_unary("/v1beta1.Registration/Register")
        request = wire.encode_register(server.path.name, resource, options)
        try:
            # Does not wait for a connection: a refused one fails at once, where gRPC itself would pause for a second.
            await call(request, timeout=REGISTER_DEADLINE)
        except grpc.aio.AioRpcError as error:
            raise _classify(error) from None


def _classify(error: grpc.aio.AioRpcError) -> RegistrationError:
    """Tell the answers apart by their text: all come with code UNKNOWN (contract section 2.2)."""
    text = error.details() or ""
    if "requested API version" in text:
        return RegistrationRefusedError(f"the kubelet does not speak {wire.API_VERSION}: {text}")
    if "the ResourceName" in text and "is invalid" in text:
        return RegistrationRefusedError(f"the kubelet does not accept the resource name: {text}")
    if "device plugin already connected" in text:
        return AlreadyConnectedError(
            "the kubelet still holds an earlier connection of this socket's name, so another name is used; if devices "
            "stay allocatable that nobody serves, restart the kubelet"
        )
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RegistrationError(f"the kubelet did not answer Register within {REGISTER_DEADLINE:.0f} s")
    if "failed to dial device plugin" in text:
        return RegistrationError(f"the kubelet could not reach the plugin's socket: {text}")
    return RegistrationError(f"the kubelet did not register the plugin: {text or error.code().name}")
