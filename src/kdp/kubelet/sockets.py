"""Socket files of plugins and drivers: private until they answer, and removed when they are a dead process's.

A socket is bound in a private directory and renamed out of it when it answers. So a visible name of ours that refuses
connections is always a dead one, and nobody else can connect before the socket has its permissions: gRPC binds with
those that the umask leaves, and listens at once.

The private directory lies beside the sockets, because a socket can only be renamed within a file system, and goes when
it is empty. It and the names in it are hidden: the plugin watcher ignores them (contract section 3).

A connect(2) succeeds as soon as somebody listens, also if that process is stopped or stuck. Every server of gRPC sends
its SETTINGS frame to each new client (RFC 9113, section 3.4). So `greet` asks without gRPC and without a call: those
nine bytes prove that the process runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
import struct
import time
from typing import TYPE_CHECKING, Final, final

import attrs

from ..model.names import check_socket_path
from ..storage.addresses import MAX_SOCKET_PATH_BYTES, address

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


PREFIX: Final = "kdp-"
"""How the sockets of all kdp processes begin."""

_LONGEST_SLUG: Final = 40

_TAIL: Final = len(f"-{'0' * 8}-{'9' * 6}.sock") + 1
"""Token, generation, and suffix of a plugin's socket, and one to spare."""

UNBORN_SECONDS: Final = 60.0
"""Age in seconds from which a socket in a private directory that refuses connections is no starting process's."""


_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""A client's preface with its empty SETTINGS frame."""

_FRAME_HEAD: Final = 9
_SETTINGS: Final = 4


def birthplace(path: Path) -> Path:
    """Return the path at which a socket is bound before it gets its own; the kernel goes on naming it by that.

    It has the socket's name, behind a dot, or any name if that is too long.
    """
    directory = path.parent / ".kdp"
    born = directory / f".{path.name}"
    return born if len(os.fsencode(born)) <= MAX_SOCKET_PATH_BYTES else directory / f".{os.urandom(3).hex()}"


def plugin_prefix(directory: Path, name: str) -> str:
    """Return how the sockets of all plugins begin that serve a resource of this name in a directory."""
    room = MAX_SOCKET_PATH_BYTES - len(os.fsencode(directory)) - 1 - len(PREFIX) - _TAIL
    slug = re.sub(r"[^A-Za-z0-9.-]", "_", name)
    longest = max(8, min(_LONGEST_SLUG, room))
    if len(slug) > longest:
        import hashlib  # a rare need, and not cheap to load

        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        slug = digest if longest < 10 else f"{slug[: longest - 9]}.{digest}"
    return f"{PREFIX}{slug}-"


def is_plugin_socket(prefix: str, name: str) -> bool:
    """Return whether a socket of this name has this `plugin_prefix`, and is of no resource whose name is longer."""
    return re.fullmatch(rf"{re.escape(prefix)}[0-9a-f]{{8}}-\d+\.sock", name) is not None


def check_length(path: Path) -> None:
    """Check that a socket can be bound, and then have this path.

    Raises:
        InvalidNameError: Its directory's path is too long.
    """
    check_socket_path(max(os.fspath(path), os.fspath(birthplace(path)), key=lambda each: len(os.fsencode(each))))


def make_private(directory: Path) -> None:
    """Make the directory of a `birthplace`, which only this user may enter, and remove dead sockets from it.

    Raises:
        OSError: It cannot be made, or belongs to somebody else.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(errno.EEXIST, f"{directory.name} in it is not a directory of this user; remove it")
    if stat.S_IMODE(found.st_mode) != 0o700:  # the umask took a right away, or somebody gave one
        os.chmod(directory, 0o700)
    remove_dead(directory, bool, older_than=UNBORN_SECONDS)


def connect(path: str | os.PathLike[str]) -> int:
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
        with address(path) as short:
            found = connect(short)
    except OSError:
        return None
    return True if found == 0 else False if found == errno.ECONNREFUSED else None


def answered_by_others(directory: Path, is_ours: Callable[[str], object]) -> dict[str, int]:
    """Return the names of sockets at which another process answers, and its id; 0: it is in another PID namespace."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for name in filter(is_ours, os.listdir(directory)):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.setblocking(False)
                probe.connect(os.fspath(directory / name))
                if (pid := _peer(probe)) != os.getpid():
                    found[name] = pid
    return found


@final
@attrs.frozen(kw_only=True)
class Greeting:
    """What a socket answered.

    Attributes:
        error: The error's number of the connect(2); 0: somebody listens.
        answered: Whether a server of HTTP/2 answered; None: nobody did within the deadline.
        pid: The listening process; 0: it is in another PID namespace, or nobody listens.
    """

    error: int = 0
    answered: bool | None = None
    pid: int = 0


def greet(path: str | os.PathLike[str], deadline: float) -> Greeting:
    """Connect to a socket and wait up to ``deadline`` seconds for the server's first frame. It blocks.

    Raises:
        OSError: No file descriptor is free, or, without a number, the path is too long.
    """
    until = time.monotonic() + deadline
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        if error := asking.connect_ex(os.fspath(path)):
            return Greeting(error=error)
        pid = _peer(asking)
        answer = b""
        with contextlib.suppress(OSError):
            asking.sendall(_HELLO)
            while len(answer) < _FRAME_HEAD and (left := until - time.monotonic()) > 0:
                asking.settimeout(left)
                if not (received := asking.recv(_FRAME_HEAD - len(answer))):
                    return Greeting(answered=False, pid=pid)
                answer += received
    if not answer:
        return Greeting(pid=pid)
    return Greeting(answered=len(answer) == _FRAME_HEAD and answer[3] == _SETTINGS, pid=pid)


def _peer(connected: socket.socket) -> int:
    """Return the id of the process that listens; 0: it is in another PID namespace."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", credentials)
    return int(pid)


def leave_private(directory: Path) -> None:
    """Remove the directory of a `birthplace` if it is empty; other processes may have a socket in it."""
    with contextlib.suppress(OSError):
        os.rmdir(directory)


def remove_dead(directory: Path, is_ours: Callable[[str], object], *, older_than: float = 0.0) -> list[str]:
    """Remove sockets of this age in seconds that nobody listens on; return their names. Those in use are left alone.

    In the plugin directory the kubelet's next start would remove them too, in the plugin watcher's nobody does
    (contract section 11). Errors are not ours to solve: what cannot be removed stays.
    """
    removed: list[str] = []
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if is_ours(name) and is_answered(directory / name) is False:
                with contextlib.suppress(OSError):
                    if not older_than or time.time() - os.lstat(directory / name).st_mtime > older_than:
                        os.unlink(directory / name)
                        removed.append(name)
    return removed


def missing_right(code: int | None) -> str:
    """Return which right of the process is missing when the kubelet's directories refuse it; empty: that is not why."""
    if code in (errno.EACCES, errno.EPERM) and (user := os.geteuid()) != 0:
        return f"; this process is user {user} and the kubelet's directories belong to root: run it as user 0"
    return "; mount it writable" if code == errno.EROFS else ""


def bind_error(path: Path, born: Path) -> str:
    """Return why no socket for a path can be bound at another. gRPC does not say, so it is tried once more by hand."""
    try:
        make_private(born.parent)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.bind(os.fspath(born))
        os.unlink(born)
    except OSError as error:
        return f"cannot make a socket in {path.parent}: {error.strerror or error}{missing_right(error.errno)}"
    finally:
        leave_private(born.parent)
    return f"cannot serve on {path}: gRPC refused the address"
