"""`Observable`: one value that changes, and waiting for it to change. The newest wins; nothing queues up.

Every step of kdp hands its result to the next one this way, so that a slow reader costs one value of memory and no
step ever calls back up.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Observable(Generic[T]):
    """A value with a version. Use it from one asyncio loop; any number of readers, each with its own cursor."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.version = 0
        self._changed = asyncio.Event()

    def set(self, value: T) -> None:
        """Replace the value and wake every reader."""
        self.value = value
        self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def after(self, version: int) -> T:
        """Return the value as soon as its version is another one than this."""
        while self.version == version:
            await self._changed.wait()
        return self.value
