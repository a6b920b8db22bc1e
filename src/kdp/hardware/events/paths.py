"""`PathWatch`: which of the node's paths that match a pattern came, went, were replaced, or were written to.

inotify watches directories, so each directory on the way of the pattern is watched as far as it is there. A change in
one of them is only a reason to look: what has changed is told by comparing what is there with what was there before.
"""

from __future__ import annotations

import contextlib
import glob
import os
from typing import TYPE_CHECKING, Final

import anyio

from ...concurrency.threads import offload
from ...errors import InvalidValueError
from .directories import DirectoryWatch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from ..directory import NodeFiles

POLL: Final = 1.0
"""Seconds between two looks where the kernel gives no watches."""

_Identity = tuple[int, int, int, int]
"""Device, inode, time of the last write, and size: what is other for another file or another content."""


class PathWatch:
    """Watch the paths that match a pattern; `Host.watch` makes one. An async context manager; asyncio only.

    Args:
        host: The node's files.
        pattern: An absolute shell pattern without ``**``.

    Raises:
        InvalidValueError: The pattern has ``**``.
    """

    def __init__(self, host: NodeFiles, pattern: str) -> None:
        if "**" in pattern:
            raise InvalidValueError(
                f"pattern {pattern!r}: must not have **, as each directory is watched by itself; valid is "
                "'/run/acme/*/state'"
            )
        self._host = host
        self._steps = [step for step in pattern.split("/") if step]
        self._directories = DirectoryWatch()
        self._known: Mapping[str, _Identity] = {}

    async def __aenter__(self) -> Self:
        await self._directories.__aenter__()
        try:
            self._known = await offload(self._look)
        except BaseException:  # a directory may not be read: nobody leaves a context that was not entered
            await self._directories.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._directories.__aexit__(*exception)

    async def changes(self) -> frozenset[str]:
        """Wait for a change, and return the node's paths that have changed since the last call, at least one.

        The first call tells what has changed since the context was entered. Where the kernel gives no watches, every
        second is a look. sysfs and procfs tell the kernel of no new content: poll them.

        Raises:
            RuntimeError: It is called outside of ``async with``.
            PermissionError: This process may not read a directory, so that it cannot know what is there.
        """
        while True:
            before, self._known = self._known, await offload(self._look)
            changed = {path for path in before.keys() | self._known.keys() if before.get(path) != self._known.get(path)}
            if changed:
                return frozenset(changed)
            with anyio.move_on_after(POLL if self._directories.refused else None):
                await self._directories.changes()

    def _look(self) -> dict[str, _Identity]:
        """Watch all directories of the pattern that are there, and return the paths that match. Blocks."""
        places = ["/"]
        for depth in range(1, len(self._steps) + 1):
            for place in places:
                # Of /dev every close of /dev/null would be told.
                writes = depth == len(self._steps) and not f"{place}/".startswith("/dev/")
                with contextlib.suppress(OSError):  # a loop of links: nothing is below it
                    # Below a root, the kernel would follow an absolute link out of it.
                    self._directories.watch(self._host.inside(self._host.resolve(place)), writes=writes)
            pattern = "/".join(["", *self._steps[:depth]])
            places = self._host.glob(pattern) if glob.has_magic(pattern) else [pattern]
        found: dict[str, _Identity] = {}
        for path in places:
            try:
                status = os.lstat(self._host.inside(self._host.resolve(path)))
            except OSError:
                continue
            found[path] = status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
        return found
