"""`ModeLock`: the devices of a node are served by a device plugin or by a DRA driver, never by both at once.

The kubelet and the scheduler keep account of the two apart, so one device would be given away twice. Several processes
of one mode may live at once, as in a rolling update. So each mode has a lock file for each backend, which its processes
share, and nobody begins while a process of the other mode has its file. A lock ends with its process, however that
ends; whoever ends in order and is the last removes the file.

It works where both can write the same directory: a DaemonSet mounts it from the node. Where it cannot be written
nothing is locked, and that is said. What the kubelet still has on offer is another question, which the DRA driver asks
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import random
import zlib
from typing import TYPE_CHECKING, Final, Literal, Self, final

from ..kubelet.paths import DEFAULT_ROOT
from ..storage.files import is_at, lock

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType

    from ..model.backend import DeviceBackend

logger = logging.getLogger(__name__)

Mode = Literal["device-plugin", "dra"]

_OTHER: Final[dict[Mode, Mode]] = {"device-plugin": "dra", "dra": "device-plugin"}
_WORDS: Final[dict[Mode, str]] = {"device-plugin": "as a device plugin", "dra": "as a DRA driver"}

LOOK_PAUSE: Final = 1.0
"""Seconds between two tries while the other mode is there."""


def key_of(backend: DeviceBackend, kubelet_root: Path) -> str:
    """Return what a backend's lock files are named by.

    It is its resource, or its class if its devices name theirs. Kubelets in other places have other accounts: those of
    tests, and of simulations on a node that serves the real one.
    """
    name = backend.resource or f"{type(backend).__module__}.{type(backend).__qualname__}"
    if kubelet_root == DEFAULT_ROOT:
        return name
    # No secret, and hashlib is a hundredth of a process's start.
    return f"{name}@{zlib.crc32(os.fsencode(kubelet_root)):08x}"


@final
class ModeLock:
    """Holds the locks of a mode; an async context manager, which is entered when the other mode has gone.

    Attributes:
        problem: Why it waits, as a sentence; None: it does not.
    """

    def __init__(self, directory: Path, mode: Mode, keys: Iterable[str]) -> None:
        self.problem: str | None = None
        self._directory = directory
        self._mode: Mode = mode
        self._keys = sorted(set(keys))
        self._held: dict[Path, int] = {}

    async def __aenter__(self) -> Self:
        while (taken := self._take()) is not None:
            other = _OTHER[self._mode]
            problem = (
                f"another process serves {taken} {_WORDS[other]}; devices can be offered in one way only: end that "
                f"one, as by deleting its DaemonSet, and this one begins {_WORDS[self._mode]}"
            )
            if self.problem is None:
                logger.warning("%s", problem)
            self.problem = problem
            await asyncio.sleep(LOOK_PAUSE * random.uniform(0.5, 1.0))  # noqa: S311 - two that begin at once must not stay in step
        self.problem = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        for path, descriptor in self._held.items():
            with contextlib.suppress(OSError):
                if lock(descriptor):
                    path.unlink()
            os.close(descriptor)
        self._held.clear()

    def _take(self) -> str | None:
        """Take all locks, or none; return whose is held by the other mode, None: nobody's."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for key in self._keys:
                path = self._path(key, self._mode)
                self._held[path] = _shared(path)
                if _is_held(self._path(key, _OTHER[self._mode])):
                    self._release()
                    return key
        except OSError as error:
            self._release()
            # A device plugin without DRA beside it needs no directory, and runs without one as it always did.
            level = logging.INFO if self._mode == "dra" else logging.DEBUG
            logger.log(
                level, "%s: no locks there (%s): nobody else is kept from serving", self._directory, error.strerror
            )
        return None

    def _path(self, key: str, mode: Mode) -> Path:
        return self._directory / f"{key.replace('/', '_')}.{mode}.lock"


def _shared(path: Path) -> int:
    """Open a lock file, make it if it is missing, and hold its lock with others of the mode."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # whoever looks whether we are there holds it for a moment
        except OSError:
            os.close(descriptor)
            raise
        if is_at(descriptor, path):
            return descriptor
        os.close(descriptor)  # removed by the last one, just before we had it


def _is_held(path: Path) -> bool:
    """Return whether a process holds a lock file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not lock(descriptor)
    finally:
        os.close(descriptor)
