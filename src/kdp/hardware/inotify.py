"""What inotify tells: `DirectoryWatch` of names in directories, `PathWatch` of the node's paths that match a pattern.

`DirectoryWatch` tells names, not states: the receiver of a change looks for itself. So a lost event costs only time,
and the name ``""`` says "look at everything": the queue overflowed, or the directory itself was moved or removed.

inotify watches directories, so `PathWatch` watches each directory on the way of its pattern as far as it is there. A
change in one of them is only a reason to look: what has changed is told by comparing what is there with what was there
before.
"""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import asyncinotify

from ..concurrency.threads import offload
from ..errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from .directory import NodeFiles

POLL: Final = 1.0
"""Seconds between two looks where the kernel gives no watches."""

_Identity = tuple[int, int, int, int]
"""Device, inode, time of the last write, and size: what is other for another file or another content."""

_Mask = asyncinotify.Mask
_MASK = (
    _Mask.CREATE
    | _Mask.DELETE
    | _Mask.MOVED_FROM
    | _Mask.MOVED_TO
    | _Mask.DELETE_SELF
    | _Mask.MOVE_SELF
    | _Mask.ONLYDIR
)
_LOOK_AGAIN = _Mask.Q_OVERFLOW | _Mask.DELETE_SELF | _Mask.MOVE_SELF | _Mask.IGNORED | _Mask.UNMOUNT


def check_entered(is_entered: bool) -> None:
    """Refuse a question to a watch that was not entered: its answer would never come.

    Raises:
        RuntimeError: It was not.
    """
    if not is_entered:
        raise RuntimeError("nothing is watched yet; enter the watch with async with before you ask it")


class DirectoryWatch:
    """Watch directories for changes of their entries. An async context manager; asyncio only; one reader at a time.

    Attributes:
        refused: Why the kernel gives no watches (limits of the user, an odd file system); None: it does. Where
            it is refused `changes` never returns, and the caller polls.
        overflowed: Whether the kernel's queue has overflowed since the start: events were lost.
    """

    def __init__(self) -> None:
        self.refused: str | None = None
        self.overflowed = False
        self._is_entered = False
        self._inotify: asyncinotify.Inotify | None = None
        self._watches: dict[str, asyncinotify.Watch] = {}

    async def __aenter__(self) -> Self:
        self._is_entered = True
        try:
            self._inotify = asyncinotify.Inotify()
            # asyncinotify 4.4 asks for a blocking descriptor by mistake; `changes` drains it until it would block.
            os.set_blocking(self._inotify.fd, False)
        except OSError as error:
            self.refused = f"inotify is refused: {error.strerror}"
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._inotify is not None:
            self._inotify.close()

    @property
    def directories(self) -> frozenset[str]:
        """The directories that are watched now."""
        return frozenset(self._watches)

    def watch(self, directory: str | os.PathLike[str], *, writes: bool = False) -> bool:
        """Watch a directory; a second time does no harm. Return False if it does not exist or inotify is refused.

        Args:
            directory: Its path; links are followed, and several names of one directory may be watched.
            writes: Also tell of files that were open for writing and were closed. Not for ``/dev``, where every close
                of ``/dev/null`` would be told.

        Raises:
            RuntimeError: It is called outside of ``async with``.
        """
        check_entered(self._is_entered)
        name = str(Path(directory))  # as asyncinotify will name it: no final slash
        if self._inotify is None:
            return False
        if name in self._watches:
            return True
        try:
            self._watches[name] = self._inotify.add_watch(name, _MASK | _Mask.CLOSE_WRITE if writes else _MASK)  # pyright: ignore[reportUnknownMemberType]
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return False
        except OSError as error:  # ENOSPC, EMFILE: a limit; others: a file system without inotify
            self.refused = f"inotify is refused for {name}: {error.strerror}"
            return False
        return True

    def unwatch(self, directory: str | os.PathLike[str]) -> None:
        """Stop watching a directory; an unknown one does no harm."""
        watch = self._watches.pop(str(Path(directory)), None)
        if watch is None or self._inotify is None or self._names(watch):
            return
        with contextlib.suppress(OSError):  # the directory was removed, and its watch with it
            self._inotify.rm_watch(watch)

    def _names(self, watch: asyncinotify.Watch) -> list[str]:
        """Return all names under which this directory is watched: inotify knows it only once."""
        return [name for name, other in self._watches.items() if other is watch]

    async def changes(self) -> set[tuple[str, str]]:
        """Wait for a change and return all (directory, name) pairs that have changed since: at least one.

        The name ``""`` means: look at everything in this directory; it may also be gone, and is no longer watched then.
        Cancellation loses nothing but the events that were being waited for.

        Raises:
            RuntimeError: It is called outside of ``async with``.
        """
        check_entered(self._is_entered)
        if self._inotify is None:
            await anyio.sleep_forever()
        assert self._inotify is not None
        found: set[tuple[str, str]] = set()
        while not found:  # the kernel's farewell to a watch that was taken back is no change
            found |= self._translate(await self._inotify.get())
            found |= self._queued()
        return found

    def _queued(self) -> set[tuple[str, str]]:
        """Return what else has come already: one wake-up for a burst."""
        assert self._inotify is not None
        found: set[tuple[str, str]] = set()
        while True:
            try:
                event = self._inotify.sync_get()
            except BlockingIOError:
                return found
            if event is None:
                return found
            found |= self._translate(event)

    def _translate(self, event: asyncinotify.Event) -> set[tuple[str, str]]:
        if _Mask.Q_OVERFLOW in event.mask:
            self.overflowed = True
            return {(directory, "") for directory in self._watches}
        watch = event.watch
        if watch is None:
            return set()
        names = self._names(watch)
        if event.mask & _LOOK_AGAIN:
            if event.mask & (_Mask.DELETE_SELF | _Mask.MOVE_SELF | _Mask.IGNORED):
                for name in names:
                    self.unwatch(name)
            return {(name, "") for name in names}
        changed = "" if event.name is None else os.fspath(event.name)
        return {(name, changed) for name in names}


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
                f"pattern {pattern!r}: must not have **, as each directory is watched by itself; for example "
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
