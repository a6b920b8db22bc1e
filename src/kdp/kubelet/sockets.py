"""Socket files of plugins and drivers: hidden until they answer, and removed when they are a dead process's.

A socket is bound under a hidden name and renamed when it answers. So a visible name of ours that refuses connections is
always a dead one, and the plugin watcher, which ignores hidden names, never meets a socket that does not answer yet
(contract section 3).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def hidden(path: Path) -> Path:
    """Return the name under which a socket is bound before it answers."""
    return path.with_name(f".{path.name}")


def connect(path: Path) -> int:
    """Try to connect to a socket, which cannot block, and return the error's number; 0: somebody listens.

    Raises:
        OSError: No file descriptor is free to try it with, or, without a number, the path is too long.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        code = probe.connect_ex(os.fspath(path))
    return 0 if code == errno.EAGAIN else code  # EAGAIN: it listens, and has more callers than it takes at once


def is_answered(path: Path) -> bool | None:
    """Return whether somebody listens at a socket; None: there is none, or it cannot be told."""
    try:
        found = connect(path)
    except OSError:
        return None
    return True if found == 0 else False if found == errno.ECONNREFUSED else None


def remove_dead(directory: Path, is_ours: Callable[[str], object]) -> list[str]:
    """Remove sockets that nobody listens on; return their names. Sockets in use are left alone.

    In the plugin directory the kubelet's next start would remove them too, in the plugin watcher's nobody does
    (contract section 11). Errors are not ours to solve: what cannot be removed stays.
    """
    removed: list[str] = []
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if is_ours(name) and is_answered(directory / name) is False:
                with contextlib.suppress(OSError):
                    os.unlink(directory / name)
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
