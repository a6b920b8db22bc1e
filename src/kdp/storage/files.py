"""Replace a file whole, remove the drafts that killed processes left, and tell why a directory takes no file.

* A reader finds the old file or the new one, whole, also after a crash at any moment.
* `draft` writes a file that gets its name later. That last step needs neither space nor a free descriptor.
* A draft is a hidden file beside the file that it becomes. A process that is killed while it writes leaves its draft;
  `remove_drafts` removes it a minute later.
* What is written can be read again: a file has `kdp.storage.reading.MAX_BYTES` at most.

All functions block for the disk. A failure is an `OSError`, and leaves the old file in place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path
from typing import Final, Literal, final

import attrs

from . import locks
from .reading import MAX_BYTES

Sync = Literal["nothing", "content", "name"]
"""What survives a loss of power: either file, perhaps empty; either file, whole; the new file."""

DRAFT_SECONDS: Final = 60.0
"""Age in seconds from which a draft belongs to no living process."""

_SUFFIX: Final = ".draft"
_LONGEST_STEM: Final = 200
"""Characters of the file's name in its draft's name; with the rest they stay within the 255 of a file system."""


@final
@attrs.frozen
class Draft:
    """A file that is written, and does not have its name yet.

    Attributes:
        path: Where it is.
        file: What it is to replace.
    """

    path: Path
    file: Path

    def commit(self) -> None:
        """Replace the file. This needs neither space nor a free descriptor."""
        os.rename(self.path, self.file)

    def discard(self) -> None:
        """Remove the draft, if it is there and may be removed."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def draft(file: Path, data: bytes, *, mode: int = 0o600) -> Draft:
    """Write what is to replace a file later, and sync it. It belongs to the caller until it is as old as any draft."""
    written, descriptor = _written(file, data, mode, "content", is_locked=False)
    os.close(descriptor)
    return written


def replace(file: Path, data: bytes, *, mode: int = 0o600, sync: Sync = "content") -> None:
    """Replace a file, or make it. Its directory must exist. The umask does not change ``mode``."""
    os.close(_replace(file, data, mode, sync, is_locked=False))


def replace_locked(file: Path, data: bytes, *, mode: int = 0o600) -> int:
    """Replace a file like `replace`. Return its descriptor, which holds its lock until `kdp.storage.locks.close`."""
    return _replace(file, data, mode, "content", is_locked=True)


def _replace(file: Path, data: bytes, mode: int, sync: Sync, *, is_locked: bool) -> int:
    written, descriptor = _written(file, data, mode, sync, is_locked=is_locked)
    try:
        try:
            written.commit()
        except BaseException:
            written.discard()
            raise
        if sync == "name":
            sync_names(file.parent)
    except BaseException:
        locks.close(descriptor)
        raise
    return descriptor


def _written(file: Path, data: bytes, mode: int, sync: Sync, *, is_locked: bool) -> tuple[Draft, int]:
    """Write a draft; return it with its open descriptor."""
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"{len(data)} bytes are more than the {MAX_BYTES} of a file of kdp", str(file))
    written = Draft(file.with_name(f".{file.name[:_LONGEST_STEM]}.{os.urandom(6).hex()}{_SUFFIX}"), file)
    descriptor = os.open(written.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        if is_locked:
            locks.lock(descriptor)  # before it has the name: nobody may take it for a dead process's
        os.fchmod(descriptor, mode)
        _write(descriptor, data)
        if sync != "nothing":
            os.fsync(descriptor)
    except BaseException:
        written.discard()
        locks.close(descriptor)
        raise
    return written, descriptor


def _write(descriptor: int, data: bytes) -> None:
    with open(descriptor, "wb", closefd=False) as stream:
        stream.write(data)


def mark_of(status: os.stat_result) -> tuple[int, ...]:
    """Return device, inode, size, and time of the last write: they differ after a replacement and after most writes."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def remove(file: Path) -> None:
    """Remove a file, so that it does not come back after a loss of power. Neither it nor its directory need exist."""
    try:
        file.unlink(missing_ok=True)
        sync_names(file.parent)
    except FileNotFoundError:  # not even the directory
        return


def sync_names(directory: Path) -> None:
    """Have the names of a directory's files outlive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_drafts(directory: Path, prefix: str = "", *, older_than: float = DRAFT_SECONDS) -> list[Path]:
    """Remove the drafts that killed processes left, and return them.

    Args:
        directory: The directory; it need not exist.
        prefix: How the names of the files begin.
        older_than: Age in seconds from which a draft is removed.
    """
    removed: list[Path] = []
    with contextlib.suppress(OSError):
        for draft in directory.glob(f".{prefix}*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                if time.time() - draft.stat().st_mtime > older_than:
                    draft.unlink()
                    removed.append(draft)
    return removed


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
            return os.strerror(errno.EROFS)
        if not os.access(place, os.W_OK | os.X_OK):
            return os.strerror(errno.EACCES)
        blocks, files = (room.f_bfree, room.f_ffree) if os.geteuid() == 0 else (room.f_bavail, room.f_favail)
        if (room.f_blocks and not blocks) or (room.f_files and not files):  # a file system without limits counts none
            return os.strerror(errno.ENOSPC)
        if surely and place == directory:
            draft(directory / "kdp_probe", b"\0" * 4096).discard()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _nearest(directory: Path) -> Path:
    """Return a directory, or the nearest one above it that exists."""
    for place in (directory, *directory.parents):
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(place).st_mode):
                return place
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
