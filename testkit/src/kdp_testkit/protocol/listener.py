"""The file ``kubelet.sock``: bound and listened on by us, with the gRPC server behind it.

gRPC binds, listens, serves and unlinks in one step and says goodbye to its clients when it stops. A kubelet is
less tidy, and plugins must live with it: between bind(2) and listen(2) connections are refused (contract section
4.4), a killed kubelet leaves a dead file behind (4.3) and closes its connections abruptly. So the socket is
ours, and each connection is relayed, byte by byte, to the server, which listens on an abstract address.
"""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from anyio.abc import TaskGroup, TaskStatus

_CHUNK_BYTES = 64 * 1024


async def serve_connections(
    listener: socket.socket,
    serve: Callable[[socket.socket], Coroutine[Any, Any, None]],
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve each connection in a task of its own until cancelled; then close the listener."""
    try:
        async with anyio.create_task_group() as tasks:
            task_status.started()
            while True:
                await anyio.wait_readable(listener)
                while True:
                    try:
                        connection, _ = listener.accept()
                    except BlockingIOError:
                        break
                    except OSError:  # it was told to refuse
                        await anyio.sleep_forever()
                        return
                    connection.setblocking(False)
                    tasks.start_soon(serve, connection)
    finally:
        listener.close()


class Listener:
    """One bound ``kubelet.sock``.

    Args:
        path: Where to bind.
        inner: The abstract address of the server behind, without its leading NUL.

    Raises:
        OSError: Something is in the way at the path, or it is too long.
    """

    def __init__(self, path: Path, inner: str) -> None:
        self.path = path
        self._inner = "\0" + inner
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._connections: set[socket.socket] = set()
        try:
            self._listener.bind(os.fspath(path))
        except OSError:
            self._listener.close()
            raise
        self._inode: tuple[int, int] | None = None

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self.path.lstat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def listen(self) -> None:
        """Take connections from now on; before, they are refused."""
        self._listener.listen(4096)
        self._inode = self._identity()

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Relay connections until it is cancelled; `listen` must have been called."""
        await serve_connections(self._listener, self._relay, task_status=task_status)

    async def _relay(self, outer: socket.socket) -> None:
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._connections |= {outer, inner}
        try:
            # A failed relay is a lost connection, nothing else.
            with suppress(OSError):
                inner.connect(self._inner)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_pump, outer, inner, tasks.cancel_scope)
                    tasks.start_soon(_pump, inner, outer, tasks.cancel_scope)
        finally:
            self._connections -= {outer, inner}
            outer.close()
            inner.close()

    def slam(self) -> None:
        """Refuse new connections and break all others abruptly; the file stays as a dead socket.

        Takes effect at once; `serve` must still be cancelled.
        """
        self.refuse()
        self.drop_connections()

    def refuse(self) -> None:
        """Refuse new connections; those that there are go on, and the file stays as a dead socket."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def drop_connections(self) -> None:
        """Break the connections that there are, and go on."""
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def unlink(self) -> None:
        """Remove the file if it is still ours."""
        if self._inode is not None and self._identity() == self._inode:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the listening socket of a listener that never served. Idempotent."""
        self._listener.close()


async def _pump(source: socket.socket, sink: socket.socket, scope: anyio.CancelScope) -> None:
    """Copy bytes one way until either side ends; then the whole connection ends."""
    with suppress(OSError):
        while True:
            await anyio.wait_readable(source)
            data = memoryview(source.recv(_CHUNK_BYTES))
            if not data:
                break
            while data:
                try:
                    data = data[sink.send(data) :]
                except BlockingIOError:
                    await anyio.wait_writable(sink)
    scope.cancel()


class KubeletSocket:
    """A ``kubelet.sock`` in front of a server.

    Args:
        path: Where it lies.
        purpose: Part of the server's address.

    Attributes:
        address: The abstract address of the server behind it, without its leading NUL.
    """

    def __init__(self, path: Path, purpose: str) -> None:
        self.address = f"kdp-{purpose}-{os.getpid()}-{secrets.token_hex(8)}"
        self._path = path
        self._listener: Listener | None = None
        self._scope: anyio.CancelScope | None = None

    @property
    def is_listening(self) -> bool:
        """Whether plugins can connect."""
        return self._listener is not None

    def listen(self, tasks: TaskGroup) -> None:
        """Take connections from now on; the tasks serve them."""
        self._listener = Listener(self._path, self.address)
        self._listener.listen()
        self._scope = anyio.CancelScope()
        tasks.start_soon(self._serve, self._listener, self._scope)

    async def _serve(self, listener: Listener, scope: anyio.CancelScope) -> None:
        with scope:
            await listener.serve()

    def vanish(self) -> bool:
        """Leave a dead file behind and break all connections, as a killed kubelet does; False: it was gone already."""
        if self._listener is None:
            return False
        self._listener.slam()
        if self._scope is not None:
            self._scope.cancel()
        self._listener = None
        return True


def wipe(directory: Path) -> None:
    """Remove the sockets, as a kubelet does that starts."""
    for path in directory.iterdir():
        with suppress(OSError):
            if path.is_socket():
                path.unlink()
