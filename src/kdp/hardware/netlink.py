"""The two places that news come from: a netlink socket of the kernel, or a file at the root of a tree that is no real node.

Multicast netlink may lose messages (ENOBUFS) and says so; the caller looks at everything then.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from typing import TYPE_CHECKING, Any, cast, final

from .watch import DirectoryWatch

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Appended", "open_netlink", "take"]

_BUFFER = 1 << 20
"""Bytes of messages that may wait for us: a node with many devices tells some thousands at once when a driver is loaded."""


def open_netlink(protocol: int, groups: int) -> socket.socket:
    """Return a socket that hears these multicast groups; it does not block.

    Raises:
        OSError: The kernel has no such protocol, or refuses it.
    """
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        opened.bind((0, groups))
    except OSError:
        opened.close()
        raise
    return opened


def take(opened: socket.socket) -> tuple[list[bytes], bool]:
    """Return the kernel's messages that wait in the socket, and whether they are all that were sent."""
    found: list[bytes] = []
    complete = True
    while True:
        try:
            data, sender = cast("tuple[bytes, tuple[int, int]]", opened.recvfrom(65536))
        except BlockingIOError:
            return found, complete
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            complete = False
            continue
        if sender[0] == 0:  # a process could send as well; the kernel's own number is 0
            found.append(data)


@final
class Appended:
    """A file of JSON objects, one in a line, to which somebody appends: what stands there at the start is not news.

    Args:
        file: It need not be there yet; its directory must be.

    Attributes:
        refused: Why its changes cannot be watched; None: they are.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._watch = DirectoryWatch()
        self._offset = 0
        self.refused: str | None = None

    async def open(self) -> None:
        """Begin to watch."""
        await self._watch.__aenter__()
        self._watch.watch(self._file.parent, writes=True)
        self.refused = self._watch.refused
        try:
            self._offset = os.stat(self._file).st_size
        except OSError:
            self._offset = 0

    async def close(self) -> None:
        """End that."""
        await self._watch.__aexit__(None, None, None)

    async def changes(self) -> None:
        """Wait until something in the directory has changed."""
        await self._watch.changes()

    def take(self) -> list[dict[str, Any]]:
        """Return what was appended since."""
        try:
            with self._file.open("rb") as stream:
                stream.seek(self._offset)
                lines = stream.read().splitlines(keepends=True)
        except OSError:
            return []
        whole = [line for line in lines if line.endswith(b"\n")]
        self._offset += sum(map(len, whole))
        return [cast("dict[str, Any]", json.loads(line)) for line in whole]
