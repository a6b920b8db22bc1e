"""Locks on files, between processes: taken without waiting, dropped by the kernel when the process dies.

A lock belongs to an open file, and a child that is forked shares the open files of its parent. It would keep the locks
of a parent that was killed, and its sockets listening. So a child lets go of them at once. A program that is started has
none of them.

No function waits for a lock. `is_at` and `open_file` block for the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from typing import TYPE_CHECKING, Final

from . import reading

if TYPE_CHECKING:
    from pathlib import Path

_MANY: Final = 64
"""Descriptors from which on closed ones are looked for: others than us close sockets."""

_held: Final[dict[int, tuple[int, int]]] = {}
"""The descriptors that no child may keep, and which files those are."""


def open_file(path: Path) -> int:
    """Open a file to lock it, and make it if it is missing; its directory must exist.

    Raises:
        OSError: It cannot be opened, or something else than a regular file is there.
    """
    return reading.open_file(path, os.O_RDWR | os.O_CREAT, follow=False)


def lock(descriptor: int, byte: int | None = None, *, is_shared: bool = False) -> bool:
    """Lock an open file until `close`; return False if another process has the lock.

    A file system without locks excludes nobody: there, the answer is always True.

    Args:
        descriptor: The open file; to lock a byte, open for writing.
        byte: The one byte to lock, which need not exist. None: the whole file, apart from locks of its bytes.
        is_shared: Whether others may have the lock of the whole file, too, if they share it.
    """
    keep_from_children(descriptor)  # before it has the lock: a child may be forked in between
    try:
        if byte is None:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        else:
            request = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def keep_from_children(descriptor: int) -> None:
    """Have a child that is forked let go of an open file or a socket at once. It ends when the descriptor is closed."""
    if len(_held) >= _MANY:
        for closed in [each for each, identity in list(_held.items()) if _identity(each) != identity]:
            _held.pop(closed, None)
    identity = _identity(descriptor)
    if identity is not None:
        _held[descriptor] = identity


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def close(descriptor: int) -> None:
    """Close an open file, and so drop its locks."""
    _held.pop(descriptor, None)
    os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one at a path; another process may have removed or replaced it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _let_go() -> None:
    """In a child that was forked: drop what the parent locked. The numbers stay taken, since their users close them."""
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor, identity in _held.items():
            if _identity(descriptor) == identity:
                os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
