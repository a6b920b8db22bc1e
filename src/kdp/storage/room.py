"""Whether a directory takes new files, found out without leaving one. The functions block for the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PROBE_BYTES = b"\0" * 4096


def why_no_file(directory: Path, *, surely: bool = False) -> str | None:
    """Return why no file can be made in a directory; None: one can. For a missing one, its parent is looked at.

    Args:
        directory: The directory.
        surely: Whether a hidden draft is written and removed, which wakes up those who watch the directory. Otherwise
            only rights and free space are looked at, which says less.
    """
    try:
        place = _nearest(directory)
        room = os.statvfs(place)
        if room.f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if not os.access(place, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        blocks, files = (room.f_bfree, room.f_ffree) if os.geteuid() == 0 else (room.f_bavail, room.f_favail)
        if (room.f_blocks and not blocks) or (room.f_files and not files):  # a file system without limits counts none
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if surely and place == directory:
            _probe(directory)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _nearest(directory: Path) -> Path:
    """Return a directory, or the nearest one above it that exists."""
    place = directory
    while True:
        try:
            found = os.stat(place)
        except FileNotFoundError:
            if place == place.parent:
                raise
            place = place.parent
        else:
            if not stat.S_ISDIR(found.st_mode):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            return place


def _probe(directory: Path) -> None:
    draft = directory / f".kdp_probe.{os.urandom(6).hex()}.draft"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, _PROBE_BYTES)
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(draft)
