"""Locks on files, between processes: taken without waiting, dropped by the kernel when the process dies.

A lock belongs to an open file, which a forked child shares; `storage.forks` takes it from the child.

No function waits for a lock. `is_at` and `open_file` block for the disk.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import TYPE_CHECKING

from . import forks, reading

if TYPE_CHECKING:
    from pathlib import Path


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
    forks.keep(descriptor)  # before it has the lock: a child may be forked in between
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


def close(descriptor: int) -> None:
    """Close an open file, and so drop its locks."""
    forks.forget(descriptor)
    os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one at a path; another process may have removed or replaced it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False
