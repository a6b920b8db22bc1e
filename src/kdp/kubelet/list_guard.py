"""`ListGuard`: no process of kdp on a node sends a List to the kubelet while an Allocate of any of them runs.

A kubelet up to 1.37 may give one device to two pods otherwise (kubernetes/kubernetes#137534, fixed in 1.38):

* For an Allocate, the kubelet reserves devices under a lock, unlocks, calls the plugin, and locks again to record them.
* A List makes the kubelet free the devices of ended pods. If a pod has ended, the kubelet replaces the set of reserved
  devices by those on record. The devices of an Allocate in flight are not on record, so they count as free.
* Get and GetAllocatableResources replace nothing.

The guard is an flock(2) on the directory of the pod-resources socket: every process that can send a List has it. The
lock belongs to the inode, so containers that mount the directory share it, also read-only. The kernel drops the lock of
a process that dies. Plugins hold it shared, a process that sends a List holds it exclusively.

If the directory cannot be opened, the guard works within the process only.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, final

import anyio

from ..concurrency.observable import Observable
from ..errors import PodResourcesError
from ..storage import locks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

AFTER_ANSWER: Final = 0.2
"""Seconds from the answer of an Allocate in which the kubelet records the devices, also on a busy node."""

SOON_AFTER_ANSWER: Final = 0.002
"""The same after `LONG` without a pause between Allocates: the next one comes some milliseconds after the answer."""

LONG: Final = 3.0
"""Seconds without a pause between Allocates after which a List may follow an answer sooner."""

PATIENCE: Final = 5.0
"""Seconds that a List waits for a pause before the guard postpones it."""

RETRY: Final = 0.01
"""Seconds between two tries to lock. The kernel wakes blocked callers only, and a blocked event loop serves no call."""


@final
class ListPostponedError(PodResourcesError):
    """No pause between Allocates within `PATIENCE`, so no List was sent."""


@final
class ListGuard:
    """Keeps Lists and Allocates apart on one node. asyncio only; no method blocks.

    Args:
        directory: The directory of the pod-resources socket.

    Attributes:
        allocated_at: When an Allocate last came or was answered, on `time.monotonic`'s clock.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running = 0
        self._descriptor: int | None = None
        self._retrying: asyncio.TimerHandle | None = None
        self._dropping: asyncio.TimerHandle | None = None
        self._is_held: Observable[bool] = Observable(False)
        self._paused_at = float("-inf")
        self.allocated_at = float("-inf")

    def hold(self, call: asyncio.Task[Any]) -> None:
        """Keep Lists away from an Allocate that has just arrived; an Allocate never waits.

        Args:
            call: The task of the RPC, which ends when the answer is sent. The lock is dropped `AFTER_ANSWER` later.
        """
        self._running += 1
        self.allocated_at = time.monotonic()
        call.add_done_callback(self._answered)
        if self._dropping is not None:  # it comes within AFTER_ANSWER of the one before
            self._dropping.cancel()
            self._dropping = None
        if not self._is_held.value:
            self._is_held.set(True)
            self._lock()

    @asynccontextmanager
    async def listing(self) -> AsyncGenerator[None]:
        """Wait for a pause between Allocates, and return the context in which a List may run.

        Raises:
            ListPostponedError: There was none within `PATIENCE`.
        """
        until = time.monotonic() + PATIENCE
        descriptor = self._open()
        try:
            while self._is_held.value or not (descriptor is None or locks.lock(descriptor)):
                if time.monotonic() > until:
                    raise ListPostponedError(
                        f"Allocates have run on this node for {PATIENCE:g} s without a pause, so the devices of pods "
                        "are not listed (kubernetes/kubernetes#137534)"
                    )
                with anyio.move_on_after(RETRY):
                    await self._is_held.after(self._is_held.version)
            yield
        finally:
            if descriptor is not None:
                locks.close(descriptor)

    def _open(self) -> int | None:
        with suppress(OSError):
            return os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return None

    def _lock(self) -> None:
        """Lock, or try again soon: a List, which another process has sent, lasts some milliseconds."""
        self._retrying = None
        if self._descriptor is None:
            self._descriptor = self._open()
        if self._descriptor is None:
            self._paused_at = time.monotonic()
            return
        if locks.lock(self._descriptor):  # exclusively at first: then no Allocate of another process has run just now
            self._paused_at = time.monotonic()
        if not locks.lock(self._descriptor, is_shared=True):
            self._retrying = asyncio.get_running_loop().call_later(RETRY, self._lock)

    def _answered(self, _: object) -> None:
        self._running -= 1
        self.allocated_at = time.monotonic()
        if self._running == 0:
            is_long = time.monotonic() - self._paused_at > LONG
            pause = SOON_AFTER_ANSWER if is_long else AFTER_ANSWER
            self._dropping = asyncio.get_running_loop().call_later(pause, self._drop)

    def _drop(self) -> None:
        self._dropping = None
        if self._retrying is not None:
            self._retrying.cancel()
            self._retrying = None
        if self._descriptor is not None:
            locks.close(self._descriptor)
            self._descriptor = None
        self._is_held.set(False)
