"""`BackendLifecycle`: a backend is opened and closed in turn, even if hooks are late, or another supervisor is next.

A ``def`` hook cannot be broken off. So an ``open`` may return after its deadline or after the stop, and ``close`` may
still run when the next one, after a reload, wants to open the same object. None of them is called twice for that, and
none in the middle of the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from ..errors import HookTimeoutError, KdpError, sentence

if TYPE_CHECKING:
    from .hooks import Hooks

logger = logging.getLogger(__name__)

QUIET_SECONDS = 1.0
"""Seconds that ``close`` waits for other hooks, at most half of its own deadline; it runs although one hangs."""

_late: set[asyncio.Task[None]] = set()
"""Those that wait for an ``open`` which the stop did not wait for; the loop alone would not keep them."""


class BackendLifecycle:
    """Opens and closes one backend, for one of those who serve it. The seconds are those of the hooks."""

    def __init__(self, hooks: Hooks, *, open_seconds: float, close_seconds: float) -> None:
        self._hooks = hooks
        self._open_seconds = open_seconds
        self._close_seconds = close_seconds

    async def open(self) -> None:
        """Open it, unless it is open, as after an ``open`` that returned late.

        Raises:
            NotReady: ``open`` said so.
            HookError: It misbehaved, or an earlier call of it has not returned yet.
        """
        state = self._hooks.state
        state.holders.add(self)
        with contextlib.suppress(HookTimeoutError):  # one that hangs beyond its deadline keeps nobody
            await self._hooks.idle("close", deadline=max(0.0, state.close_until - time.monotonic()))
        await self._hooks.idle("open", deadline=self._open_seconds)
        if not state.is_open and self._hooks.overridden("open"):
            await self._hooks.call("open", deadline=self._open_seconds, then=self._opened)
        state.is_open = True

    def _opened(self, _: object) -> None:
        """Note that it is open, in the hook's thread: also when its caller has given up by now."""
        self._hooks.state.is_open = True

    async def close(self) -> None:
        """Close it if it is open."""
        await self._close(self._close_seconds, only_unheld=False)

    async def end(self, seconds: float) -> None:
        """Close it in so many seconds, unless somebody else needs it open, and let the hooks' threads end.

        An ``open`` that is still running then is followed by ``close`` when it has returned.
        """
        self._hooks.state.holders.discard(self)
        await self._end(seconds)
        if self._hooks.is_running("open"):
            task = asyncio.create_task(self._end_late())
            _late.add(task)
            task.add_done_callback(_late.discard)

    async def _end_late(self) -> None:
        await self._hooks.idle("open", deadline=None)
        await self._end(self._close_seconds)

    async def _end(self, seconds: float) -> None:
        await self._close(seconds, only_unheld=True)
        self._hooks.close()

    async def _close(self, seconds: float, *, only_unheld: bool) -> None:
        until = time.monotonic() + seconds
        await self._hooks.quiet(min(seconds / 2, QUIET_SECONDS))
        state = self._hooks.state
        if not state.is_open or (only_unheld and state.holders):
            return
        state.is_open = False
        if self._hooks.overridden("close"):
            state.close_until = time.monotonic() + self._close_seconds
            try:
                await self._hooks.call("close", deadline=max(0.1, until - time.monotonic()))
            except KdpError as error:
                logger.warning("%s: %s; going on", self._hooks.label, sentence(error))
