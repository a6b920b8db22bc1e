"""The ``kubelet.sock`` that a plugin finds while a recording is made or played; it can vanish and come back."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from ..protocol.listener import Listener

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import TaskGroup


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
            if stat.S_ISSOCK(path.stat().st_mode):
                path.unlink()
