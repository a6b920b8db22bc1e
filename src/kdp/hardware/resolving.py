"""Following links inside a root: what the kernel knows at once where no link leads out, and step by step where one may.

A plugin in a DaemonSet sees its node below ``/host`` and reads some hundred attributes every few seconds, each ten
directories deep. Looking at each directory on the way was most of what such a plugin did.
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
    found = _at_once(root, path)
    return _step_by_step(root, path) if found is None else found


def open_straight(root: str, path: str) -> int | None:
    """Open a file of the node for reading if no link is on the way to it; None: one is, or it cannot be opened.

    Raises:
        FileNotFoundError: It is not there, whatever the links are.
    """
    inside = f"{root}/{path.lstrip('/')}"
    is_straight = _is_entry(path)
    try:
        descriptor = os.open(inside, READ_ONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        if is_straight:
            raise
        return None
    except (OSError, ValueError):
        return None
    if is_straight or _place(descriptor) == inside:
        return descriptor
    os.close(descriptor)
    return None


def _at_once(root: str, path: str) -> str | None:
    """Return what few calls of the kernel are sure of; None: they are not.

    The kernel follows links from its own root, not from ours. It is right for us where that is the same, or there is no
    link at all, which is so where its answer is the question, or the one link, at the end, leads neither to ``/`` nor
    above our root.
    """
    inside = f"{root}/{path.lstrip('/')}"
    above, _, name = inside.rpartition("/")
    real = None
    if not _is_entry(path):
        real = _real(inside)
        if real is not None and (real == inside or not root):
            return real[len(root) :]
        if name in ("", ".", "..") or _real(above) != above:
            return None
    try:
        target = os.readlink(inside)
    except OSError:
        return inside[len(root) :] if real is None else None  # no link, or nothing; else it was made a moment ago
    real = real or _real(inside)
    if real is None or (root and real != _led_to(root, above, target)):
        return None
    return real[len(root) :] or None


def _led_to(root: str, above: str, target: str) -> str | None:
    """Return a link's target below a directory without links, if the target has none; None: outside the root."""
    parts = target.split("/")
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    if target.startswith("/") or up > above.count("/") - root.count("/"):
        return None
    return "/".join([*above.split("/")[: -up or None], *parts[up:]])


def _is_entry(path: str) -> bool:
    return isinstance(path, Below) and path.is_entry


def _real(inside: str) -> str | None:
    """Return where the kernel gets to, all links followed; None: nowhere, or nowhere that has a path."""
    try:
        descriptor = os.open(inside, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        place = _place(descriptor)
    finally:
        os.close(descriptor)
    return place if place is not None and place.startswith("/") and not place.endswith(" (deleted)") else None


def _place(descriptor: int) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # no /proc
        return None


def _step_by_step(root: str, path: str) -> str:
    known = path.known if isinstance(path, Below) else ""
    done = [part for part in known.split("/") if part]
    todo = path[len(known) :].split("/")[::-1]
    links = 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del done[-1:]
            continue
        try:
            target = os.readlink("/".join([root, *done, part]))
        except OSError:
            done.append(part)
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            done.clear()
        todo.extend(target.split("/")[::-1])
    return "/" + "/".join(done)
