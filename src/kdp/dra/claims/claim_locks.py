"""Locks by which the processes of a driver work on its claims one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from typing import TYPE_CHECKING

from ...errors import CheckpointError
from ...storage import locks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

LOCK_PATIENCE = 30.0
"""Seconds that another process may work on a claim before we give up; the kubelet waits for 45."""

LOCK_PAUSE = 0.02
_WHOLE = 0


class Locks:
    """Locks that processes share: one for each claim, one for the whole. asyncio only.

    Ranges of bytes of one file, by open file descriptions, so that the kernel gives them back when a process dies. A
    lock of the whole file excludes all of them; drivers that are written with the Go helper take that one.

    Args:
        file: The file; made when it is needed.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._held: dict[int, tuple[asyncio.Lock, int]] = {}

    def claim(self, uid: str) -> contextlib.AbstractAsyncContextManager[None]:
        """Work on a claim alone."""
        digest = hashlib.sha256(uid.encode(errors="surrogatepass")).digest()
        return self._range(1 + int.from_bytes(digest[:7], "big"), f"claim {uid}")

    def whole(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Compare all claims with one another, alone; to be held briefly, inside a claim's."""
        return self._range(_WHOLE, "the claims")

    @contextlib.asynccontextmanager
    async def _range(self, start: int, what: str) -> AsyncGenerator[None]:
        lock, users = self._held.get(start, (None, 0))
        lock = lock or asyncio.Lock()  # first in first out among ourselves
        self._held[start] = lock, users + 1
        try:
            async with lock:
                descriptor = await self._acquire(start, what)
                try:
                    yield
                finally:
                    locks.close(descriptor)
        finally:
            lock, users = self._held[start]
            if users == 1:
                del self._held[start]
            else:
                self._held[start] = lock, users - 1

    async def _acquire(self, start: int, what: str) -> int:
        until = time.monotonic() + LOCK_PATIENCE
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = locks.open_file(self._file)
        except OSError as error:
            raise CheckpointError(f"{self._file} cannot be opened: {error.strerror}; mount it writable") from None
        try:
            while not locks.lock(descriptor, start):
                if time.monotonic() > until:
                    raise CheckpointError(
                        f"another process of this driver has worked on {what} for {LOCK_PATIENCE:g} s; it is tried "
                        "again"
                    )
                await asyncio.sleep(LOCK_PAUSE)
        except BaseException:
            locks.close(descriptor)
            raise
        return descriptor
