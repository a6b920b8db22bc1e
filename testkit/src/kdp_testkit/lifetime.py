"""How long a simulated kubelet's process lives, and its temporary directory."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskStatus


class Lifetime:
    """One life of a kubelet's process, in a task that can be ended from outside."""

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()
        self._over = anyio.Event()

    async def run(
        self,
        live: Callable[..., Awaitable[None]],
        *arguments: Any,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Live until `end`; ``live`` reports when it has started."""
        try:
            with self._scope:
                await live(*arguments, task_status=task_status)
        finally:
            self._over.set()

    def end(self) -> None:
        """Cancel it; takes effect at the next checkpoint."""
        self._scope.cancel()

    async def until_over(self) -> None:
        """Wait until it has ended."""
        await self._over.wait()


def temporary_root(owner: object) -> tuple[str, Callable[[], object]]:
    """Make a temporary directory and return it with what removes it, which also happens when its owner is gone.

    The name is short, because a socket's path has at most 107 bytes.
    """
    root = tempfile.mkdtemp(prefix="kdp-")
    return root, weakref.finalize(owner, shutil.rmtree, root, ignore_errors=True)
