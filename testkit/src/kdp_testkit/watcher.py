"""The plugin watcher: registration by a socket file that appears in ``plugins_registry`` (contract section 3).

The kubelet walks the directory at its start and watches it from then on, with all directories below. Only creation
and removal of sockets count: a rename into a directory is a creation, a rename away is nothing. For each socket:
dial, GetInfo within 1 s, validation, registration as over kubelet.sock, NotifyRegistrationStatus within 5 s.
What to do when is `reconciler`'s decision.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import attrs
from asyncinotify import Inotify, Mask

from . import events
from .armed_faults import WatcherFault, WatcherQueue
from .events import EventLog
from .patience import PATIENCE
from .protocol.registry import Refusal
from .protocol.wire import CallError, DialError, PluginConnection, PluginInfo
from .reconciler import KnownPlugin, Reconciler

if TYPE_CHECKING:
    from anyio.abc import TaskGroup, TaskStatus

_MASK = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE

_INSTANCE_AGAIN = 0.05
"""Seconds between two tries to get an instance of inotify."""

_NOTIFY_LEAD = 0.05
"""Seconds for which ListAndWatch waits for the answer to NotifyRegistrationStatus where that call wins their race."""


async def _instance() -> Inotify:
    """Return an instance of inotify as soon as one is free: all processes of a user share a few.

    Raises:
        OSError: None is free within `PATIENCE`.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return Inotify()
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            if time.monotonic() > until:
                limits = "sysctl fs.inotify.max_user_instances, and ulimit -n"
                raise OSError(errno.EMFILE, f"no instance of inotify is free ({limits})") from None
        await anyio.sleep(_INSTANCE_AGAIN)


class _Failed(Exception):
    """An operation failed; the path backs off, for its own time or for so many seconds."""

    def __init__(self, backoff: float | None = None) -> None:
        super().__init__()
        self.backoff = backoff


@attrs.frozen(kw_only=True)
class PluginHandler:
    """What the kubelet does with plugins of one type.

    Attributes:
        validate: Returns why a plugin is refused before it is registered, or None; gets its endpoint.
        register: Connects a plugin at an endpoint, and returns what opens its stream; raises `Refusal`.
        deregister: Closes the client of a name at an endpoint.
    """

    validate: Callable[[PluginInfo, str], str | None]
    register: Callable[[PluginInfo, str], Awaitable[Callable[[], None]]]
    deregister: Callable[[str, str], Awaitable[None]]


@attrs.define(kw_only=True, eq=False)
class PluginWatcher:
    """The watcher of one life of a kubelet.

    Args:
        directory: The directory to watch; made if it is not there.
        retries: Whether a plugin whose registration failed is tried again (1.36 and later).
        period: Seconds between two looks of the reconciler.
        handlers: What is done with plugins, by their type.
        rng: Decides the race of NotifyRegistrationStatus and ListAndWatch, which the kubelet makes at once on two
            connections; the first one wins it most of the time.
        log: Where everything is written down.
        faults: What goes wrong.
        translate: Makes of a path that a plugin names the one that leads there in this process.
    """

    _directory: Path = attrs.field(alias="directory")
    _retries: bool = attrs.field(alias="retries")
    _period: float = attrs.field(alias="period")
    _handlers: Mapping[str, PluginHandler] = attrs.field(alias="handlers")
    _rng: random.Random = attrs.field(alias="rng")
    _log: EventLog = attrs.field(alias="log")
    _faults: WatcherQueue = attrs.field(alias="faults")
    _translate: Callable[[str], str] = attrs.field(alias="translate", default=str)
    _reconciler: Reconciler = attrs.field(init=False, factory=Reconciler)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled; report started when everything that lies there was seen."""
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        with await _instance() as inotify:
            self._walk(inotify, self._directory)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._reconcile_forever, tasks)
                task_status.started()
                while True:
                    event = await inotify.get()
                    if event.path is not None and event.name is not None:
                        self._handle(inotify, event.path, event.mask)

    def _handle(self, inotify: Inotify, path: Path, mask: Mask) -> None:
        if mask & Mask.DELETE:
            self._log.add(events.PluginSocketGone(socket_path=str(path)))
            self._reconciler.gone(str(path))
        elif path.is_dir() and not path.name.startswith("."):
            self._walk(inotify, path)
        elif not self._faults.misses_create():
            self._see(path)

    def _walk(self, inotify: Inotify, directory: Path) -> None:
        for folder, _, names in os.walk(directory):
            with suppress(OSError):  # it is gone again
                inotify.add_watch(Path(folder), _MASK)  # pyright: ignore[reportUnknownMemberType] - PathLike[Any]
            for name in sorted(names):
                self._see(Path(folder, name))

    def _see(self, path: Path) -> None:
        if path.is_socket() and not path.name.startswith("."):
            self._log.add(events.PluginSocketSeen(socket_path=str(path)))
            self._reconciler.seen(str(path))

    async def _reconcile_forever(self, tasks: TaskGroup) -> None:
        while True:
            for operation in self._reconciler.due(time.monotonic()):
                if isinstance(operation, KnownPlugin):
                    tasks.start_soon(self._operate, operation.socket_path, self._farewell(operation))
                else:
                    socket_path, identity = operation
                    tasks.start_soon(self._operate, socket_path, self._welcome(socket_path, identity))
            await anyio.sleep(self._period)

    async def _operate(self, socket_path: str, operation: Awaitable[None]) -> None:
        failed, backoff = False, None
        try:
            await operation
        except _Failed as failure:
            failed, backoff = True, failure.backoff
        finally:
            self._reconciler.finished(socket_path, failed=failed, now=time.monotonic(), seconds=backoff)

    async def _farewell(self, plugin: KnownPlugin) -> None:
        self._reconciler.forgotten(plugin.socket_path)
        await self._handlers[plugin.type].deregister(plugin.resource, plugin.endpoint)

    async def _welcome(self, socket_path: str, identity: int) -> None:
        fault = self._faults.next_watched()
        if fault.backoff is not None:
            self._log.add(events.DialFailed(resource="", socket_path=socket_path, error="context deadline exceeded"))
            raise _Failed(fault.backoff)
        connection = PluginConnection(socket_path, authority=None)
        try:
            try:
                await connection.dial()
            except DialError as error:
                self._log.add(events.DialFailed(resource="", socket_path=socket_path, error=str(error)))
                raise _Failed from error
            info = await self._ask(connection, fault)
            await self._take(connection, info, identity, fault)
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()

    async def _ask(self, connection: PluginConnection, fault: WatcherFault) -> PluginInfo:
        """Return what the plugin says, if the kubelet has a handler for it and its validation passes."""
        socket_path = connection.socket_path
        try:
            with anyio.fail_after(fault.info_timeout):
                info = await connection.info()
        except (CallError, TimeoutError) as error:
            failed = (
                error if isinstance(error, CallError) else CallError("DEADLINE_EXCEEDED", "context deadline exceeded")
            )
            self._log_info(socket_path, PluginInfo(type="", name="", endpoint="", versions=()), str(failed))
            raise _Failed from failed
        refusal: str | None = None
        handler = self._handlers.get(info.type)
        if handler is None:
            refusal = f"no handler registered for plugin type: {info.type} at socket {socket_path}"
        elif (invalid := handler.validate(info, info.endpoint or socket_path)) is not None:
            refusal = f"plugin validation failed with err: {invalid}"
        if refusal is None:
            self._log_info(socket_path, info, None)
            return info
        refusal = f"RegisterPlugin error -- {refusal}"
        self._log_info(socket_path, info, refusal)
        await self._notify(connection, registered=False, error=refusal)
        raise _Failed

    def _log_info(self, socket_path: str, info: PluginInfo, error: str | None) -> None:
        self._log.add(
            events.PluginInfoReceived(
                socket_path=socket_path,
                plugin_type=info.type,
                resource=info.name,
                endpoint=info.endpoint,
                versions=info.versions,
                error=error,
            )
        )

    async def _take(self, connection: PluginConnection, info: PluginInfo, identity: int, fault: WatcherFault) -> None:
        socket_path = connection.socket_path
        endpoint = self._translate(info.endpoint) or socket_path
        handler = self._handlers[info.type]
        self._reconciler.registered(KnownPlugin(socket_path, identity, info.name, endpoint, info.type))
        try:
            if fault.refusal is not None:
                raise Refusal(fault.refusal)
            open_stream = await handler.register(info, endpoint)
        except Refusal as refusal:
            if self._retries:
                self._reconciler.forgotten(socket_path)
            error = f"RegisterPlugin error -- plugin registration failed with err: {refusal}"
            await self._notify(connection, registered=False, error=error)
            raise _Failed from refusal
        if not fault.notify:
            open_stream()
        elif not await self._tell(connection, open_stream):
            if self._retries:
                self._reconciler.forgotten(socket_path)
                await handler.deregister(info.name, endpoint)
            raise _Failed

    async def _tell(self, connection: PluginConnection, open_stream: Callable[[], None]) -> bool:
        """Say that it is registered, and open the stream beside it."""
        if self._rng.random() < 0.25:
            open_stream()
            return await self._notify(connection, registered=True, error="")
        answered = anyio.Event()
        is_notified = False

        async def follow() -> None:
            with anyio.move_on_after(_NOTIFY_LEAD):
                await answered.wait()
            open_stream()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            is_notified = await self._notify(connection, registered=True, error="")
            answered.set()
        return is_notified

    async def _notify(self, connection: PluginConnection, *, registered: bool, error: str) -> bool:
        failure: str | None = None
        try:
            await connection.notify(registered=registered, error=error)
        except CallError as failed:
            failure = str(failed)
        self._log.add(
            events.PluginNotified(
                socket_path=connection.socket_path, registered=registered, error=error, failure=failure
            )
        )
        return failure is None
