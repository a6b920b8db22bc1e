"""`ModeLock`: the devices of a node are served by a device plugin or by a DRA driver, never by both at once.

The kubelet and the scheduler keep account of the two apart, so one device would be given away twice. Several processes
of one mode may live at once, as in a rolling update. So each mode has a lock file for each backend, which its processes
share, and nobody begins while a process of the other mode has its file. A lock ends with its process, however that
ends. The last process that ends in order removes the file.

Nobody waits inside the kernel for a lock: a program of others may hold one for ever. Then this process waits and says
why, as it does for the other mode.

It works where both can write the same directory: a DaemonSet mounts it from the node. Where it cannot be written
nothing is locked, and that is said. What the kubelet still has on offer is another question, which the DRA driver asks
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
import zlib
from typing import TYPE_CHECKING, Final, Literal, Self, final

from ..kubelet.paths import DEFAULT_ROOT
from ..storage import locks, reading

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

    from ..model.backend import DeviceBackend

logger = logging.getLogger(__name__)

Mode = Literal["device-plugin", "dra"]

_OTHER: Final[dict[Mode, Mode]] = {"device-plugin": "dra", "dra": "device-plugin"}
_WORDS: Final[dict[Mode, str]] = {"device-plugin": "as a device plugin", "dra": "as a DRA driver"}

LOOK_PAUSE: Final = 1.0
"""Seconds between two tries while the other mode is there."""


BRIEF: Final = 1.0
"""Seconds for which the lock of our own mode may be taken: the other mode holds it for a moment to check for us."""


def key_of(backend: DeviceBackend, kubelet_root: Path) -> str:
    """Return what a backend's lock files are named by.

    It is its resource, or its class if its devices name theirs. Kubelets in other places have other accounts: those of
    tests, and of simulations on a node that serves the real one.
    """
    name = backend.resource or f"{type(backend).__module__}.{type(backend).__qualname__}"
    return f"{name}{mark_of(kubelet_root)}"


def mark_of(kubelet_root: Path) -> str:
    """Return what the names of a kubelet's accounts end with; empty: it is where kubelets are by default."""
    # No secret, and hashlib is a hundredth of a process's start.
    return "" if kubelet_root == DEFAULT_ROOT else f"@{zlib.crc32(os.fsencode(kubelet_root)):08x}"


@final
class ModeLock:
    """Holds the locks of a mode; an async context manager, which is entered when the other mode has gone.

    Args:
        directory: Where the lock files are.
        mode: Ours.
        keys: What is served, as `key_of` returns it.
        pause: Waits for so many seconds between two tries. What it raises ends the waiting, and nothing is held.

    Attributes:
        problem: Why it waits, as a sentence; None: it does not.
    """

    def __init__(
        self,
        directory: Path,
        mode: Mode,
        keys: Iterable[str],
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.problem: str | None = None
        self._directory = directory
        self._mode: Mode = mode
        self._keys = sorted(set(keys))
        self._pause = pause
        self._held: dict[Path, int] = {}

    async def __aenter__(self) -> Self:
        until = time.monotonic() + BRIEF
        while (obstacle := self._take()) is not None:
            problem, is_brief = obstacle
            is_brief = is_brief and time.monotonic() < until
            if not is_brief and problem != self.problem:
                logger.warning("%s", problem)
                self.problem = problem
            # Two that begin at once must not stay in step.
            await self._pause((BRIEF / 20 if is_brief else LOOK_PAUSE) * random.uniform(0.5, 1.0))  # noqa: S311
        self.problem = None
        return self

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        for path, descriptor in self._held.items():
            with contextlib.suppress(OSError):
                if locks.lock(descriptor):
                    path.unlink()
            locks.close(descriptor)
        self._held.clear()

    def _take(self) -> tuple[str, bool] | None:
        """Take all locks, or none; return what is in the way, and whether it may be gone in a moment. None: nothing."""
        other = _OTHER[self._mode]
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for key in self._keys:
                path = self._path(key, self._mode)
                descriptor = _shared(path)
                if descriptor is None:
                    self._release()
                    problem = (
                        f"another program holds the lock {path}; end it, or remove that file if it does not belong "
                        f"there; then this one starts {_WORDS[self._mode]}"
                    )
                    return problem, True
                self._held[path] = descriptor
                if _is_held(self._path(key, other)):
                    self._release()
                    problem = (
                        f"another process serves {key} {_WORDS[other]}; devices can be offered in one way only: end "
                        f"that process, for example by deleting its DaemonSet; then this one starts "
                        f"{_WORDS[self._mode]}"
                    )
                    return problem, False
        except OSError as error:
            self._release()
            # A device plugin without DRA beside it needs no directory, and runs without one as it always did.
            level = logging.INFO if self._mode == "dra" else logging.DEBUG
            if isinstance(error, reading.UnusableFileError):  # a directory that can be written, and a file of others
                level = logging.WARNING
            place = error.filename if isinstance(error.filename, str) else self._directory
            logger.log(
                level, "%s: no locks there (%s): a second process could serve the same devices", place, error.strerror
            )
        return None

    def _path(self, key: str, mode: Mode) -> Path:
        return self._directory / f"{key.replace('/', '_')}.{mode}.lock"


def _shared(path: Path) -> int | None:
    """Open a lock file, make it if it is missing, and hold its lock with others of the mode; None: it is taken."""
    while True:
        descriptor = locks.open_file(path)
        if not locks.lock(descriptor, is_shared=True):
            locks.close(descriptor)
            return None
        if locks.is_at(descriptor, path):
            return descriptor
        locks.close(descriptor)  # removed by the last one, just before we had it


def _is_held(path: Path) -> bool:
    """Return whether a process holds a lock file."""
    try:
        descriptor = reading.open_file(path, os.O_RDWR, follow=False)
    except FileNotFoundError:
        return False
    try:
        return not locks.lock(descriptor)
    finally:
        locks.close(descriptor)
