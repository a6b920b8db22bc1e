"""Breaks a connection of this process abruptly, as a kubelet's that is killed.

gRPC does not hand out its sockets, so they are found among this process's descriptors by the name that the other side
has bound. The same name may be bound by somebody else as well: another plugin in another kubelet's directory, or, in a
mount namespace of its own, even at the same path. Then the peer's process tells which is which.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import NamedTuple


class _Peer(NamedTuple):
    """Who listened where: the path as the listener bound it, in his own view, and his process."""

    path: str
    pid: int


def sever(path: str) -> bool:
    """Break all connections of this process to the plugin at a socket path; return whether there was one."""
    found: list[tuple[_Peer, socket.socket]] = []
    try:
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the descriptor is closed already, or its socket has no peer
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                candidate = socket.socket(fileno=os.dup(int(name)))
                try:
                    peer = _peer(candidate)
                    if peer is not None and _file_name(peer.path) == _file_name(path):
                        found.append((peer, candidate))
                        continue
                except OSError:
                    pass
                candidate.close()
        ours = _ours({peer for peer, _ in found}, path)
        for peer, candidate in found:
            if peer in ours:
                with suppress(OSError):
                    candidate.shutdown(socket.SHUT_RDWR)
        return bool(ours)
    finally:
        for _, candidate in found:
            candidate.close()


def _ours(peers: set[_Peer], path: str) -> set[_Peer]:
    """Return those that are the plugin at this path."""
    exact = {peer for peer in peers if _directory(peer.path) == os.path.dirname(path)}
    if exact:
        return exact
    # One whose path leads somewhere here is another plugin: sockets of DRA drivers all have one name.
    peers = {peer for peer in peers if not os.path.exists(os.path.join(_directory(peer.path), _file_name(peer.path)))}
    if len(peers) <= 1:
        return peers
    # The plugin sees its directory at another path, and so does another one: ask who listens here.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.connect(path)
        return peers & {_peer(probe)}
    return set()


def _peer(connection: socket.socket) -> _Peer | None:
    if connection.family != socket.AF_UNIX:
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", credentials)
    return _Peer(os.fsdecode(connection.getpeername()), pid)


# A plugin may bind under a hidden name, or in a hidden directory, and rename (contract section 3). The kernel goes on
# telling the hidden one.


def _file_name(path: str) -> str:
    return os.path.basename(path).removeprefix(".")


def _directory(path: str) -> str:
    directory = os.path.dirname(path)
    return os.path.dirname(directory) if os.path.basename(directory).startswith(".") else directory
