"""Following links inside a root: what the kernel knows at once where no link leads out, and step by step where one may.

A plugin in a DaemonSet sees its node below ``/host`` and reads some hundred attributes every few seconds, each ten directories
deep. Looking at each directory on the way was most of what such a plugin did.
"""

from __future__ import annotations

import errno
import os

__all__ = ["MAX_LINKS", "READ_ONLY", "open_straight", "resolve"]

MAX_LINKS = 40
"""Links followed on one path before it counts as a loop, as in the kernel."""

READ_ONLY = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""How a file of the node is opened: without waiting for a writer."""


def resolve(root: str, path: str, *, is_above_resolved: bool = False) -> str:
    """Return the path of the node with all links followed inside the root; missing parts stay as they are.

    Args:
        root: Where the node's ``/`` is for this process, absolute; not ``/`` itself.
        path: Of the node.
        is_above_resolved: Whether all but its last part is known to have no links.

    Raises:
        OSError: The links form a loop (ELOOP).
    """
    found = _at_once(root, path, is_above_resolved=is_above_resolved)
    return _step_by_step(root, path) if found is None else found


def open_straight(inside: str) -> int | None:
    """Open a file for reading if no link is on the way to it; None: one is, or it cannot be opened.

    Args:
        inside: Where this process finds it, absolute.
    """
    try:
        descriptor = os.open(inside, READ_ONLY | os.O_NOFOLLOW)
    except (OSError, ValueError):
        return None
    if _place(descriptor) == inside:
        return descriptor
    os.close(descriptor)
    return None


def _at_once(root: str, path: str, *, is_above_resolved: bool = False) -> str | None:
    """Return what few calls of the kernel are sure of; None: they are not.

    The kernel follows links from its own root, not from ours. It is right for us where there is no link at all, which is so
    where its answer is the question, and where the one link, at the end, leads neither to ``/`` nor above our root.
    """
    inside = f"{root}/{path.lstrip('/')}"
    real = _real(inside)
    if real == inside:
        return inside[len(root) :]
    above, _, name = inside.rpartition("/")
    if name in ("", ".", "..") or not (is_above_resolved or _real(above) == above):
        return None
    try:
        target = os.readlink(inside)
    except OSError:
        return inside[len(root) :] if real is None else None  # nothing is there, or it was made a moment ago
    parts = target.split("/")
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    if target.startswith("/") or up > above.count("/") - root.count("/"):
        return None
    straight = "/".join([*above.split("/")[: -up or None], *parts[up:]])
    return straight[len(root) :] or None if straight == real else None


def _real(inside: str) -> str | None:
    """Return where the kernel gets to, all links followed; None: nowhere."""
    try:
        descriptor = os.open(inside, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _place(descriptor)
    finally:
        os.close(descriptor)


def _place(descriptor: int) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # no /proc
        return None


def _step_by_step(root: str, path: str) -> str:
    todo = path.split("/")[::-1]
    done: list[str] = []
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
