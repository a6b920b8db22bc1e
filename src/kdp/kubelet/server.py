"""gRPC on unix sockets: the only module that makes a server, which the kubelet calls, or a channel to the kubelet.

A channel is there for a few calls and then gone, so that none outlives a kubelet.

Only the kubelet may call, and it is root. So the socket has mode 0600 from the first moment at which anybody can find
it, in a directory that only root can write. The caller's credentials (``SO_PEERCRED``) are not checked: gRPC binds,
listens, and accepts itself, takes no descriptor from us, and names the peer ``unix:`` to a servicer. A process that can
open a socket of root with mode 0600 is root, or has ``CAP_DAC_OVERRIDE``, and could become the kubelet as well.

A cancellation waits until gRPC's server has started or stopped: it fails at one that was left halfway, and says so from
a task that nobody can await.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING
from urllib.parse import quote

import anyio
import grpc

from ..storage import forks
from .sockets import bind_error, birthplace, leave_private, make_private

if TYPE_CHECKING:
    from pathlib import Path

_OPTIONS = [
    # GetPreferredAllocation sends the whole free list back to us (contract section 5).
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", -1),
    # A stream must never end on its own, and a lively peer is no attacker.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]

MAX_RECEIVE_BYTES = 16 * 1024 * 1024
"""Largest answer in bytes: gRPC's 4 MiB are too few for tens of thousands of devices (contract section 10)."""

_CHANNEL_OPTIONS = [
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    # A connection of its own for each channel: an old one's back-off of up to 120 s must not be inherited.
    ("grpc.use_local_subchannel_pool", 1),
]

STREAM_GRACE = 0.1
"""Seconds for a stream's last bytes; an ended stream does not need them, a peer that does not read gets no more."""


class ServeError(Exception):
    """The socket could not be made; the text says why."""


def unix_target(path: Path) -> str:
    """Return gRPC's address of a unix socket; the path is a URI's, so odd characters are escaped."""
    return "unix:" + quote(os.fspath(path))


def open_channel(path: Path) -> grpc.aio.Channel:
    """Return a new channel to a unix socket; an async context manager. It connects at its first call."""
    return grpc.aio.insecure_channel(unix_target(path), options=_CHANNEL_OPTIONS)


def hold_core() -> grpc.aio.Channel:
    """Return a channel to nowhere that keeps gRPC's core running while it is open.

    Between two generations nothing of gRPC is alive; starting the core anew would cost as much as everything else on
    the way from a listening kubelet to Register.
    """
    return grpc.aio.insecure_channel("unix:/nonexistent")


async def start_server(server: grpc.aio.Server) -> None:
    """Start a server; a cancellation waits for it."""
    with anyio.CancelScope(shield=True):
        await server.start()


async def stop_server(server: grpc.aio.Server, grace: float | None) -> None:
    """Stop a server; a cancellation waits for it, so for ``grace`` seconds at most."""
    with anyio.CancelScope(shield=True):
        await server.stop(grace)


class SocketServer:
    """A gRPC server on a socket of its own, which ends up at ``path``."""

    def __init__(self, path: Path, handlers: list[grpc.GenericRpcHandler]) -> None:
        self.path = path
        self._file = birthplace(path)
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers(handlers)
        self._identity: tuple[int, int] | None = None

    async def start(self) -> None:
        """Listen in a private directory; nobody else can find it yet.

        Raises:
            ServeError: The directory is missing, read-only, full, or the path too long.
        """
        forks.keep_served(self, os.fspath(self._file))  # before it is bound: a child may be forked in between
        try:
            self._bind()
        except (OSError, RuntimeError):
            try:
                self._bind()  # another process may have removed the empty directory before there was a socket in it
            except (OSError, RuntimeError):
                forks.forget_served(self)
                raise ServeError(bind_error(self.path, self._file)) from None
        await start_server(self._server)
        try:
            os.chmod(self._file, 0o600)  # the kubelet is root; nobody else has business here
            found = os.stat(self._file)
        except OSError as error:
            raise ServeError(f"socket {self._file} vanished while it was made: {error.strerror}") from None
        self._identity = (found.st_dev, found.st_ino)

    def _bind(self) -> None:
        make_private(self._file.parent)
        self._server.add_insecure_port(unix_target(self._file))

    def publish(self) -> None:
        """Give the socket its name: from now on it can be found, and it answers.

        Raises:
            ServeError: It cannot be renamed.
        """
        try:
            os.rename(self._file, self.path)
        except OSError as error:
            raise ServeError(f"cannot name socket {self.path}: {error.strerror}") from None
        leave_private(self._file.parent)
        self._file = self.path

    @property
    def is_in_place(self) -> bool:
        """Whether the socket file is there, in the private directory or under its own name, and still ours."""
        try:
            found = os.lstat(self._file)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def unlink(self) -> None:
        """Remove the socket file, if it is still ours: nobody finds the server any more, connections live on."""
        with contextlib.suppress(OSError):
            if self.is_in_place:
                os.unlink(self._file)
        if self._file != self.path:
            leave_private(self._file.parent)

    async def stop(self) -> None:
        """End the server with everything that still runs on it; streams that were told to end get a moment for it."""
        self.unlink()
        await stop_server(self._server, STREAM_GRACE)
        forks.forget_served(self)
