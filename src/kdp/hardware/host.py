"""`Host`: the node's file system as this process sees it.

In a DaemonSet the node's ``/dev`` may be mounted at ``/host/dev``; in a test it is a directory. A backend always
speaks in paths *of the node* and asks `Host` about them; links are followed inside the root, never out of it.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from pathlib import Path
from typing import Literal

import attrs

from ..errors import InvalidValueError

__all__ = ["Host"]

MAX_LINKS = 40
"""Links followed on one path before it counts as a loop, as in the kernel."""


_SLASH = Path("/")


def _root(value: str | os.PathLike[str]) -> Path:
    root = Path(os.path.abspath(value))
    return _SLASH if root == _SLASH else root  # so that `is` tells, which costs nothing in a request


@attrs.frozen
class Host:
    """The node's files below a root. All methods block (they stat), and may be called from any thread.

    Attributes:
        root: Where the node's ``/`` is for this process; default ``/``.
    """

    root: Path = attrs.field(default=_SLASH, converter=_root)

    def path(self, host_path: str | os.PathLike[str]) -> Path:
        """Return where this process finds a path of the node. Links on the way are not looked at: see `resolve`."""
        return Path(self._inside(os.fspath(host_path)))

    def _inside(self, host_path: str) -> str:
        return host_path if self.root is _SLASH else os.path.join(self.root, host_path.lstrip("/"))

    def resolve(self, host_path: str | os.PathLike[str]) -> str:
        """Return the path of the node with all links followed inside the root; missing parts stay as they are.

        Raises:
            OSError: The links form a loop (ELOOP).
        """
        if self.root is _SLASH:
            return os.path.realpath(host_path)
        todo = os.fspath(host_path).split("/")[::-1]
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
                target = os.readlink(self.path("/".join([*done, part])))
            except OSError:
                done.append(part)
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(host_path))
            if target.startswith("/"):
                done.clear()
            todo.extend(target.split("/")[::-1])
        return "/" + "/".join(done)

    def _stat(self, host_path: str | os.PathLike[str]) -> os.stat_result | None:
        try:
            return os.stat(host_path if self.root is _SLASH else self._inside(self.resolve(host_path)))
        except OSError:
            return None

    def exists(self, host_path: str | os.PathLike[str]) -> bool:
        """Return whether something is there, links followed."""
        return self._stat(host_path) is not None

    def device_type(self, host_path: str | os.PathLike[str]) -> Literal["char", "block"] | None:
        """Return what kind of device node is there, links followed; None: nothing, or no device."""
        found = self._stat(host_path)
        if found is None:
            return None
        return "char" if stat.S_ISCHR(found.st_mode) else "block" if stat.S_ISBLK(found.st_mode) else None

    def device_node(self, host_path: str) -> str:
        """Return the path of a device node itself: a link is followed, one lstat(2) is enough where it is none.

        Raises:
            InvalidValueError: Nothing is there, or it is no device.
        """
        path = host_path
        try:
            # Below another root even a directory on the way may be a link that leads out of it.
            mode = os.lstat(path).st_mode if self.root is _SLASH else stat.S_IFLNK
            if stat.S_ISLNK(mode):
                path = self.resolve(host_path)
                mode = os.stat(self._inside(path)).st_mode
        except OSError:
            raise InvalidValueError(f"device node {host_path} is gone") from None
        if not stat.S_ISCHR(mode) and not stat.S_ISBLK(mode):
            raise InvalidValueError(f"{host_path} is no device node")
        return path

    def node_fault(self, host_path: str) -> str | None:
        """Return what is wrong with a device node, as a sentence; None: it is there and is a device."""
        try:
            self.device_node(host_path)
        except InvalidValueError as error:
            return str(error)
        return None

    def glob(self, pattern: str) -> list[str]:
        """Return the node's paths that match a shell pattern, sorted; ``**`` matches any depth."""
        root = "" if self.root is _SLASH else str(self.root)
        found = glob.glob(f"{glob.escape(root)}/{pattern.lstrip('/')}", recursive=True)
        return sorted(path[len(root) :] for path in found)
