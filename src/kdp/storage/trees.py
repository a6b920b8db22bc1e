"""Look into directories below one that is trusted, and remove names from them, without following any link on the way.

A directory of the kubelet is root's, but the directories in it belong to drivers, and volumes in it to pods. A link in
the place of a directory would lead a command of root to any other file of the node. So each function opens every level
below the trusted directory by its descriptor, with ``O_NOFOLLOW``; the trusted directory itself may be a link.

All functions block for the disk.
"""

from __future__ import annotations

import contextlib
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import reading

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def directory(base: Path, parts: Sequence[str] = ()) -> Generator[int]:
    """Open a directory below a trusted one, and give its descriptor.

    Args:
        base: The trusted directory.
        parts: The names on the way from there.

    Raises:
        OSError: It cannot be opened, or one of the names is a link (``ENOTDIR`` or ``ELOOP``).
    """
    descriptor = os.open(base, _DIRECTORY)
    try:
        for part in parts:
            below = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def entries(base: Path, parts: Sequence[str] = ()) -> list[tuple[str, int]]:
    """Return the names in a directory below a trusted one, sorted, each with its mode as `os.lstat` has it.

    Empty: the directory is missing, closed to this user, or behind a link.
    """
    found: list[tuple[str, int]] = []
    with contextlib.suppress(OSError), directory(base, parts) as opened:
        for name in sorted(os.listdir(opened)):
            with contextlib.suppress(OSError):  # another process has just removed it
                found.append((name, os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode))
    return found


def open_file(base: Path, parts: Sequence[str]) -> int:
    """Open a regular file below a trusted directory for reading, without waiting, and return its descriptor.

    Raises:
        OSError: It cannot be opened, is behind a link, or is no regular file.
    """
    with directory(base, parts[:-1]) as opened:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(parts[-1], flags, dir_fd=opened)
    try:
        reading.check_regular(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_directory(base: Path, parts: Sequence[str]) -> bool:
    """Return whether a directory is there that no link leads to."""
    try:
        with directory(base, parts):
            return True
    except OSError:
        return False


def remove(base: Path, parts: Sequence[str]) -> None:
    """Remove a name from a directory below a trusted one: a file, a link, or an empty directory.

    Raises:
        OSError: It cannot be removed, is missing, is behind a link, or is a directory with something in it.
    """
    with directory(base, parts[:-1]) as opened:
        mode = os.stat(parts[-1], dir_fd=opened, follow_symlinks=False).st_mode
        (os.rmdir if stat.S_ISDIR(mode) else os.unlink)(parts[-1], dir_fd=opened)
