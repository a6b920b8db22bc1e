"""Whether another process has a directory of this machine mounted, by the kernel's words alone.

A DaemonSet mounts kdp's state directory from the node. No tenant's pod can have that mount: its volumes have other file
systems, or lie in other directories of the node's. The kernel names a mount by the device of its file system and by the
directory within that (proc_pid_mountinfo(5)), so nothing behind the other process's own names is opened: what is there
may be a link to anywhere, or a file system that never answers.

All functions block for files of the kernel.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..storage import reading

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")

_MOST_BYTES = 8 << 20
_ESCAPE = re.compile(r"\\([0-7]{3})")


def has_mounted(pid: int, directory: Path) -> bool:
    """Return whether a process has a directory of this one mounted, under whatever name; False: it cannot be told.

    Args:
        pid: The process, as it is numbered here.
        directory: As this process has it.
    """
    try:
        wanted = _place_of(os.path.realpath(directory))
        return pid > 0 and any((device, root) == wanted for device, root, _ in _mounts(str(pid)))
    except OSError:
        return False


def _place_of(directory: str) -> tuple[str, str] | None:
    """Return the device of a directory's file system, and the directory within that."""
    best, longest = None, -1
    for device, root, point in _mounts("self"):
        # Of two mounts at one place, the later one is seen.
        if len(point) >= longest and posixpath.commonpath([point, directory]) == point:
            within = posixpath.relpath(directory, point)
            best, longest = (device, posixpath.normpath(posixpath.join(root, within))), len(point)
    return best


def _mounts(process: str) -> Iterator[tuple[str, str, str]]:
    """Give each mount of a process: the device, the directory within its file system, and the place."""
    text = reading.read(PROC / process / "mountinfo", limit=_MOST_BYTES).decode(errors="surrogateescape")
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) > 4:
            yield words[2], _unescaped(words[3]), _unescaped(words[4])


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
