"""Following links inside a root, step by step: the kernel would follow an absolute link out of it.

A plugin in a DaemonSet sees its node below ``/host`` and reads some hundred attributes every few seconds, each ten
directories deep. Looking at each directory on the way was most of what such a plugin did, so a `Directory` knows that
its own path has no links.
"""

from __future__ import annotations

import errno
import os
from typing import final

MAX_LINKS = 40
"""Links followed on one path before it counts as a loop, as in the kernel."""

READ_ONLY = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""How a file of the node is opened: without waiting for a writer."""


@final
class Below(str):
    """A path of the node in a directory that is known to have no links on the way to it, as a `Directory` is.

    It is a text as any other, for a caller that looks at nodes in another way.

    Attributes:
        known: The directory.
        is_entry: Whether nothing is between it and the directory.
    """

    known: str
    is_entry: bool

    def __new__(cls, known: str, rest: str) -> Below:
        """Return the path of what is there."""
        path = super().__new__(cls, f"{known}/{rest}" if known != "/" else f"/{rest}")
        path.known = known
        path.is_entry = "/" not in rest and rest not in ("", ".", "..")
        return path


def resolve(root: str, path: str) -> str:
    """Return the path of the node with all links followed inside the root; missing parts stay as they are.

    Args:
        root: Where the node's ``/`` is for this process, absolute; empty where it is this process's own, too.
        path: Of the node, absolute.

    Raises:
        OSError: The links form a loop (ELOOP).
    """
    known = path.known.rstrip("/") if isinstance(path, Below) else ""
    place, todo = f"{root}{known}", path[len(known) :].split("/")[::-1]
    links = 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            place = root if place == root else place.rpartition("/")[0]
            continue
        try:
            target = os.readlink(f"{place}/{part}")
        except OSError:
            place = f"{place}/{part}"
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            place = root
        todo.extend(target.split("/")[::-1])
    return place[len(root) :] or "/"


def open_entry(root: str, path: str) -> int | None:
    """Open an entry of a directory without links for reading; None: it is a link, or it cannot be opened.

    Raises:
        FileNotFoundError: It is not there.
    """
    if not (isinstance(path, Below) and path.is_entry):
        return None
    try:
        return os.open(f"{root}/{path.lstrip('/')}", READ_ONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except (OSError, ValueError):
        return None
