"""The event loop of the tests, each of which has one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple, Unpack

from typing_extensions import override

_Arguments = TypeVarTuple("_Arguments")


class Loop(asyncio.SelectorEventLoop):
    """Takes what comes too late.

    gRPC has one queue for all loops of a process. What a call of an earlier test still gets is handed to the loop of
    that test by whoever looks into the queue next: that loop is closed, and the error would be that of the next test.
    """

    @override
    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[_Arguments]], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        if self.is_closed() and str(getattr(callback, "__module__", "")).startswith("grpc."):
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon_threadsafe(callback, *args, context=context)
