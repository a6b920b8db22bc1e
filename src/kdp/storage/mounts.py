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


def _place_of(directory: str) -> tuple[str, str] | None:
    """Return the device of a directory's file system, and the directory within that."""
    best, longest = None, -1
    for each in _mounts("self"):
        # A later mount covers an earlier one at the same place.
        if len(each.point) >= longest and posixpath.commonpath([each.point, directory]) == each.point:
            within = posixpath.relpath(directory, each.point)
            best, longest = (each.device, posixpath.normpath(posixpath.join(each.root, within))), len(each.point)
    return best


class _Mount(NamedTuple):
    device: str
    root: str
    """The directory within the file system."""
    point: str
    kind: str
    """The file system's, as ``tmpfs``."""


def _mounts(process: str) -> Iterator[_Mount]:
    text = reading.read(PROC / process / "mountinfo", limit=_MOST_BYTES).decode(errors="surrogateescape")
    for line in text.splitlines():
        fields, _, kind = line.partition(" - ")
        words = fields.split(" ")
        if len(words) > 4:
            yield _Mount(words[2], _unescaped(words[3]), _unescaped(words[4]), kind.partition(" ")[0])


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
