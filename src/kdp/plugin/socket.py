"""Socket files of device plugins: their names, their length, and the remains of dead processes.

A name is never used twice, by no later generation and no other process: it holds a random token of the process and the
generation's number (contract section 2.5, B3). A socket is bound under a hidden name and renamed when it answers. So a
visible name of ours that refuses connections is always a dead one, and the plugin watcher, which ignores hidden names,
never meets a socket that does not answer yet (contract section 3).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from typing import TYPE_CHECKING

from ..kubelet.watch import PREFIX
from ..names import MAX_SOCKET_PATH_BYTES, check_socket_path

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SocketNames", "bind_error", "hidden", "missing_right", "remove_dead"]

_LONGEST_SLUG = 40
_TAIL = len(f"-{'0' * 8}-{'9' * 6}.sock") + 1  # token, generation, suffix, and the dot of the hidden name


class SocketNames:
    """The names of one resource's sockets in one process.

    Args:
        directory: Where the sockets will be.
        resource: The extended resource's name.

    Raises:
        InvalidNameError: The directory's path leaves no room for a name.
    """

    def __init__(self, directory: Path, resource: str) -> None:
        self._directory = directory
        room = MAX_SOCKET_PATH_BYTES - len(os.fsencode(directory)) - 1 - len(PREFIX) - _TAIL
        slug = re.sub(r"[^A-Za-z0-9.-]", "_", resource)
        longest = max(8, min(_LONGEST_SLUG, room))
        if len(slug) > longest:
            import hashlib  # a rare need, and not cheap to load

            digest = hashlib.sha256(resource.encode()).hexdigest()[:8]
            slug = digest if longest < 10 else f"{slug[: longest - 9]}.{digest}"
        self.prefix = f"{PREFIX}{slug}-"
        self._token = os.urandom(4).hex()
        check_socket_path(os.fspath(hidden(self.path(999_999))))

    def path(self, generation: int) -> Path:
        """Return the path of a generation's socket."""
        return self._directory / f"{self.prefix}{self._token}-{generation}.sock"


def hidden(path: Path) -> Path:
    """Return the name under which a socket is bound before it answers."""
    return path.with_name(f".{path.name}")


def remove_dead(directory: Path, prefix: str) -> list[str]:
    """Remove sockets with this prefix that nobody listens on; return their names. Sockets in use are left alone.

    In the plugin directory the kubelet's next start would remove them too, in the plugin watcher's nobody does
    (contract section 11). Errors are not ours to solve: what cannot be removed stays.
    """
    removed: list[str] = []
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if not name.startswith(prefix) or not name.endswith(".sock"):
                continue
            path = os.path.join(directory, name)
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.setblocking(False)
                if probe.connect_ex(path) == errno.ECONNREFUSED:
                    os.unlink(path)
                    removed.append(name)
    return removed


def missing_right(code: int | None) -> str:
    """Return which right of the process is missing when the kubelet's directories refuse it; empty: that is not why."""
    if code in (errno.EACCES, errno.EPERM) and (user := os.geteuid()) != 0:
        return f"; this process is user {user} and the kubelet's directories are root's: run it as user 0"
    return "; mount it writable" if code == errno.EROFS else ""


def bind_error(path: Path) -> str:
    """Return why no socket can be bound here. gRPC does not say, so it is tried once more by hand."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.bind(os.fspath(path))
    except OSError as error:
        return f"cannot make a socket in {path.parent}: {error.strerror or error}{missing_right(error.errno)}"
    with contextlib.suppress(OSError):
        os.unlink(path)
    return f"cannot serve on {path}: gRPC refused the address"
