"""`InProcess`: a vendor's class under kdp in this process, as an instance of either protocol.

The kit makes a device fail or heal by the vendor's levers, or through the backend's own reports. Levers win: then the
vendor's detection is judged as well.

A class derived from the vendor's stands between him and kdp. A hook may be ``def`` or ``async def``; what is put around
it stays what it was, so that kdp calls it as it would have.
"""

from __future__ import annotations

import abc
import inspect
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, cast

import anyio
import anyio.to_thread
import attrs
from typing_extensions import override

from kdp.model.backend import Reporter

from .checks import Failed
from .instance import Ending, Instance, LeverName, Levers, SharedLevers, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from pathlib import Path

    from anyio.abc import TaskStatus

    from kdp.model.backend import DeviceBackend

Hook = Callable[..., Any]


def derive(backend: DeviceBackend, hooks: Mapping[str, object]) -> None:
    """Make a backend one of a class that is derived from its own and has these attributes."""
    cls = type(backend)
    derived = type(cls.__name__, (cls,), {"__module__": cls.__module__, **hooks})
    backend.__class__ = cast("type[DeviceBackend]", derived)


async def called(hook: Hook, *arguments: Any) -> Any:
    """Call a hook as kdp does: in the event loop, or in a thread if it is not asynchronous."""
    if inspect.iscoroutinefunction(hook):
        return await hook(*arguments)
    return await anyio.to_thread.run_sync(hook, *arguments)


def before(hook: Hook, call: Callable[[Any], object]) -> Hook:
    """Return a hook of one argument that has something else called with it first."""
    if inspect.iscoroutinefunction(hook):

        async def asynchronous(self: DeviceBackend, argument: Any) -> Any:
            call(argument)
            return await hook(self, argument)

        return asynchronous

    def plain(self: DeviceBackend, argument: Any) -> Any:
        call(argument)
        return hook(self, argument)

    return plain


def after(hook: Hook, change: Callable[[DeviceBackend, Any], object]) -> Hook:
    """Return a hook without arguments whose result is changed."""
    if inspect.iscoroutinefunction(hook):

        async def asynchronous(self: DeviceBackend) -> Any:
            return change(self, await hook(self))

        return asynchronous

    def plain(self: DeviceBackend) -> Any:
        return change(self, hook(self))

    return plain


PATIENCE = 10.0
"""Seconds that an instance has to end, and to ask its backend for reports."""

_KEPT_LINES = 500
_FAULT = "made to fail by the conformance kit"
_KIND = "conformance"

_speaker: ContextVar[InProcess | None] = ContextVar("kdp_conformance_instance", default=None)
"""Whose tasks these are: checks run beside one another, each with instances of its own, and all log to one logger."""


@attrs.define(kw_only=True, eq=False)
class Control:
    """What the kit does to one backend; read in the hooks' threads.

    Attributes:
        hidden: Devices that were taken away.
        reporter: What the backend's watch was given; None: it was not called yet.
    """

    hidden: set[str] = attrs.field(factory=set[str])
    reporter: Reporter | None = attrs.field(default=None)

    def reports(self, reporter: Reporter) -> None:
        """Keep the newest reporter."""
        self.reporter = reporter


class _LogOf(logging.Handler):
    """Hands kdp's log to the instance that it is about, known by the context of the task that speaks."""

    def __init__(self, instance: InProcess) -> None:
        super().__init__(instance.log_level)
        self._instance = instance

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if _speaker.get() is self._instance:
            self._instance.lines.append(record.getMessage())


class InProcess(Instance):
    """A backend that is served in this process.

    Attributes:
        log_level: From which level on kdp's log is kept.
        lines: The last lines of that log.
    """

    log_level: ClassVar[int] = logging.WARNING

    def __init__(self, levers: SharedLevers, control: Control) -> None:
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.leave = anyio.Event()
        self._ended = anyio.Event()
        self._levers = levers
        self._control = control
        self._asked_at: float | None = None

    @abc.abstractmethod
    async def serve(self, started: Callable[[], None]) -> int | None:
        """Serve until `leave`, and return the exit code that a process would have had, if it is known."""

    @abc.abstractmethod
    def sockets(self) -> Iterable[Path]:
        """Return the socket files that a killed process would leave."""

    @asynccontextmanager
    async def running(self, wake: Callable[[], None]) -> AsyncGenerator[Instance]:
        """Run it; it is gone when the context is left.

        Args:
            wake: Called when it has ended.
        """
        handler, logger = _LogOf(self), logging.getLogger("kdp")
        logger.addHandler(handler)
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self._run, wake)
                try:
                    yield self
                finally:
                    self.release()
                    with anyio.CancelScope(shield=True):
                        await self._levers.undo()
                        with suppress(TimeoutError):
                            await self.stop(PATIENCE)
                    tasks.cancel_scope.cancel()
        finally:
            logger.removeHandler(handler)

    async def _run(self, wake: Callable[[], None], *, task_status: TaskStatus[None]) -> None:
        _speaker.set(self)
        code: int | None = None
        try:
            code = await self.serve(task_status.started)
        finally:
            now = time.monotonic()
            self.release()
            self.ending = Ending(seconds=now - (self._asked_at or now), code=code, asked=self._asked_at is not None)
            self._ended.set()
            wake()

    @override
    async def stop(self, within: float) -> Ending:
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        self.leave.set()
        with anyio.fail_after(within):
            await self._ended.wait()
        assert self.ending is not None
        return self.ending

    @override
    async def kill(self) -> None:
        """End it, and put dead sockets where its own were: what a killed process leaves of itself."""
        left = list(self.sockets())
        await self.stop(PATIENCE)
        for path in left:
            # An error: it is still there.
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
                dead.bind(os.fspath(path))

    @override
    def usage(self) -> Usage:
        return Usage.of_process(os.getpid())

    def own_id(self, device: str) -> str:
        """Return the backend's id of a device that a check names as the kubelet does."""
        return device

    async def reporter(self) -> Reporter:
        """Return what the backend's watch was given.

        Raises:
            Failed: It is not called.
        """
        with anyio.move_on_after(PATIENCE):
            while self._control.reporter is None:  # noqa: ASYNC110 - it comes from a thread
                await anyio.sleep(0.002)
        if self._control.reporter is None:
            raise Failed("the backend's watch() was not called")
        return self._control.reporter

    async def pulled(self, lever: LeverName, device: str) -> bool:
        """Pull one of the vendor's levers; False: he gave none.

        Where he gave any, the kit's own are not used: mixing them would leave the hardware half changed.
        """
        if self._levers.levers == Levers():
            return False
        await self._levers.pull(lever, self.own_id(device))
        return True

    @override
    async def fail(self, device: str) -> None:
        if not await self.pulled("fail", device):
            await self.fail_saying(device, _FAULT)

    @override
    async def fail_saying(self, device: str, message: str) -> None:
        (await self.reporter()).fault([self.own_id(device)], message, kind=_KIND)

    @override
    async def heal(self, device: str) -> None:
        if not await self.pulled("heal", device):
            (await self.reporter()).clear([self.own_id(device)], kind=_KIND)
