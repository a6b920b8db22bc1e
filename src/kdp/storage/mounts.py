"""The kernel's list of mounts (proc_pid_mountinfo(5)): a directory in memory, and a directory of another process.

A DaemonSet mounts kdp's state directory from the node. No tenant's pod can have that mount: its volumes have other file
systems, or lie in other directories of the node. The kernel names a mount by the device of its file system and by the
directory within that. So kdp opens no path of the other process, which may be a link to anywhere, or a file system that
never answers.

All functions block for files of the kernel.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from . import reading

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")

_MOST_BYTES = 8 << 20
_ESCAPE = re.compile(r"\\([0-7]{3})")


def has_mounted(pid: int, directory: Path) -> bool:
    """Return whether a process has a directory of this one mounted, under any name; False if the kernel is silent.

    Args:
        pid: The process, as it is numbered here.
        directory: As this process has it.
    """
    try:
        wanted = _place_of(os.path.realpath(directory))
        return pid > 0 and any((each.device, each.root) == wanted for each in _mounts(str(pid)))
    except OSError:
        return False


def is_in_memory(directory: Path) -> bool:
    """Return whether a directory is in a tmpfs.

    Raises:
        OSError: The directory or the list of mounts cannot be read.
    """
    number = os.stat(directory).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    return any(each.kind == "tmpfs" for each in _mounts("self") if each.device == device)


def how_to_write(directory: Path) -> str:
    """Return how to make a read-only directory writable. Its mount is read-only, or the whole file system."""
    place = os.path.realpath(directory)
    try:
        mount = _mount_of(place)
    except OSError:
        mount = None
    look = f"findmnt -T {shlex.quote(place)}"
    if mount is None or mount.is_file_system_read_only:
        return f"its file system itself is read-only: see why on the node, and mount it writable: {look}; dmesg"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return f"remove readOnly from the volumeMount of {mount.point} in the DaemonSet"
    return f"let its mount be written to: mount -o remount,bind,rw {shlex.quote(mount.point)}"


def _mount_of(directory: str) -> _Mount | None:
    """Return the mount in which a directory is."""
    best = None
    for each in _mounts("self"):
        # A later mount covers an earlier one at the same place.
        is_longer = best is None or len(each.point) >= len(best.point)
        if is_longer and posixpath.commonpath([each.point, directory]) == each.point:
            best = each
    return best


def _place_of(directory: str) -> tuple[str, str] | None:
    """Return the device of a directory's file system, and the directory within that."""
    mount = _mount_of(directory)
    if mount is None:
        return None
    within = posixpath.relpath(directory, mount.point)
    return mount.device, posixpath.normpath(posixpath.join(mount.root, within))


class _Mount(NamedTuple):
    device: str
    root: str
    """The directory within the file system."""
    point: str
    kind: str
    """The file system's, as ``tmpfs``."""
    is_file_system_read_only: bool


def _mounts(process: str) -> Iterator[_Mount]:
    text = reading.read(PROC / process / "mountinfo", limit=_MOST_BYTES).decode(errors="surrogateescape")
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split(" ")
        kind, _, options = rest.partition(" ")
        if len(words) > 4:
            is_read_only = "ro" in options.rpartition(" ")[2].split(",")
            yield _Mount(words[2], _unescaped(words[3]), _unescaped(words[4]), kind, is_read_only)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
