"""`BackendSubject`: a vendor's class under kdp's own `PluginManager`, in this process.

The kit reaches what a foreign program hides: it derives a class from the vendor's, with a few hooks of its own around
the vendor's, so that a device can fail, vanish or appear, and Allocate can hang, on any machine and without the hardware.
The vendor's devices and edits are used as they are. Levers of the vendor's win over the kit's: then his own detection is
judged as well.
"""

from __future__ import annotations

import inspect
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, cast
from unittest import mock

import anyio
import anyio.to_thread
import asyncinotify
import attrs
from typing_extensions import override

from kdp.deviceplugin import PluginManager
from kdp.deviceplugin.tracking.pace import Pace
from kdp.errors import PluginDirectoryGoneError
from kdp.hardware import Host
from kdp.model.backend import Allocation, DeviceBackend, PreferRequest, Reporter
from kdp.model.edits import ContainerEdits
from kdp.supervision.supervisor import Deadlines

from .model import Failed, Route
from .subject import Ending, Instance, Levers, Staging, Subject, Usage

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from kdp.kubelet.paths import KubeletPaths
    from kdp.model.devices import Device

__all__ = ["SECRET", "BackendSubject", "process_usage"]

SECRET = "token-4f1c9a77"  # noqa: S105 - stands for one: it must not be seen anywhere
"""Is part of the exception that a staged Allocate raises; must not reach the pod."""

MakeBackend = Callable[[], DeviceBackend]

ALLOCATE_DEADLINE = 1.5
"""Seconds instead of 20 that a hanging Allocate gets in the check of it."""

OFTEN = Pace(
    gap=0.2, look=0.1, settling=0.0, between=0.05, absent=0.2, after_connect=0.2, period=0.2, again=0.1, lasting=0.3
)
"""How often a plugin asks the pod-resources API in the checks of what it makes of the answers."""

SLOW = 0.5
"""Seconds that a slow Allocate takes."""

_PATIENCE = 10.0

_KEPT_LINES = 500

_speaker: ContextVar[_Instance | None] = ContextVar("kdp_conformance_instance", default=None)


def process_usage(pid: int) -> Usage:
    """Return what a process uses, from /proc."""
    with open(f"/proc/{pid}/statm") as statm:
        rss = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return Usage(
        rss=rss,
        fds=len(os.listdir(f"/proc/{pid}/fd")),
        threads=int(fields[17]),
        cpu=ticks / os.sysconf("SC_CLK_TCK"),
    )


@attrs.define(kw_only=True, eq=False)
class _Control:
    """What the kit does to one backend; read in the hooks' threads."""

    staging: Staging
    resource: str
    hidden: set[str] = attrs.field(factory=set[str])
    added: list[str] = attrs.field(factory=list[str])
    grown: int = 0
    reporter: Reporter | None = None
    entered: int = 0
    cancelled: int = 0
    released: threading.Event = attrs.field(factory=threading.Event)
    returned: list[tuple[str, ...]] = attrs.field(factory=list[tuple[str, ...]])

    def staged(self, found: Iterable[Device], own: str | None) -> list[Device]:
        """Return the vendor's devices as the scenario wants them."""
        devices = list(found)
        mine = [device for device in devices if (device.resource or own) == self.resource]
        if not mine:
            return devices
        if self.staging.devices is not None:
            mine = [_copy(mine[0], f"conformance-{i}") for i in range(self.staging.devices)]
        mine += [_copy(mine[0], name) for name in self.added]
        if self.grown:
            mine = [_copy(mine[0], f"conformance-{i:051d}") for i in range(self.grown)]
        if self.staging.numa is not None:
            numa = self.staging.numa
            mine = [attrs.evolve(device, numa_nodes=tuple(numa[i % len(numa)])) for i, device in enumerate(mine)]
        devices = [device for device in devices if (device.resource or own) != self.resource] + mine
        if self.staging.second:
            devices += [
                attrs.evolve(_copy(mine[0], f"second-{i}"), resource=f"{self.resource[:50]}-second") for i in range(2)
            ]
        return [device for device in devices if device.id not in self.hidden]


def _copy(device: Device, name: str) -> Device:
    return attrs.evolve(device, id=name, unit=name)


def _instrument(backend: DeviceBackend, control: _Control) -> None:
    """Derive a class from the backend's, with the kit's hooks around it, and make the object one of it."""
    cls = type(backend)
    if backend.unused_hooks:  # the kit may want one of these called, though not the vendor's
        unused = {hook: getattr(DeviceBackend, hook) for hook in backend.unused_hooks}
        plain = {"__module__": cls.__module__, "unused_hooks": (), **unused}
        cls = cast("type[DeviceBackend]", type(cls.__name__, (cls,), plain))
        vars(backend).pop("unused_hooks", None)
    own: dict[str, Any] = {"__module__": cls.__module__}
    _wrap_discover(cls, own, control)
    _wrap_watch(cls, own, control)
    if control.staging.allocate != "plain":
        _wrap_allocate(cls, own, control)
    if control.staging.prefers is False:
        own["prefer"] = DeviceBackend.prefer
    elif control.staging.prefers and cls.prefer is DeviceBackend.prefer:
        own["prefer"] = _prefer
    if control.staging.asks_often:
        _wrap_released(cls, own, control)
    if control.staging.prepares is not None:
        _wrap_prepare(cls, own, control.staging.prepares)
    backend.__class__ = type(cls.__name__, (cls,), own)


def _wrap_discover(cls: type[DeviceBackend], own: dict[str, Any], control: _Control) -> None:
    vendors = cast("Callable[[DeviceBackend], Any]", cls.discover)
    if inspect.iscoroutinefunction(vendors):

        async def discover_async(self: DeviceBackend) -> list[Device]:
            return control.staged(await vendors(self), self.resource)

        own["discover"] = discover_async
    else:

        def discover(self: DeviceBackend) -> list[Device]:
            return control.staged(vendors(self), self.resource)

        own["discover"] = discover


def _wrap_watch(cls: type[DeviceBackend], own: dict[str, Any], control: _Control) -> None:
    vendors = cast("Callable[[DeviceBackend, Reporter], Any]", cls.watch)
    if inspect.iscoroutinefunction(vendors):

        async def watch_async(self: DeviceBackend, report: Reporter) -> None:
            control.reporter = report
            await vendors(self, report)

        own["watch"] = watch_async
    else:

        def watch(self: DeviceBackend, report: Reporter) -> None:
            control.reporter = report
            vendors(self, report)

        own["watch"] = watch


def _wrap_allocate(cls: type[DeviceBackend], own: dict[str, Any], control: _Control) -> None:
    vendors = cast("Callable[[DeviceBackend, Allocation], Any]", cls.allocate)

    async def plain(self: DeviceBackend, devices: Allocation) -> Any:
        if inspect.iscoroutinefunction(vendors):
            return await vendors(self, devices)
        return await anyio.to_thread.run_sync(vendors, self, devices)

    async def slow(self: DeviceBackend, devices: Allocation) -> Any:
        if not control.released.is_set():
            control.entered += 1
            try:
                await anyio.sleep(SLOW)
            except BaseException:
                control.cancelled += 1
                raise
            finally:
                control.entered -= 1
        return await plain(self, devices)

    def hangs(self: DeviceBackend, devices: Allocation) -> Any:
        control.entered += 1
        control.released.wait()  # nobody can cancel it, as with a driver's ioctl
        control.entered -= 1
        return ContainerEdits()  # nobody waits for it any more

    async def raises(self: DeviceBackend, devices: Allocation) -> Any:
        if not control.released.is_set():
            raise RuntimeError(f"the library said: login with {SECRET} failed")
        return await plain(self, devices)

    own["allocate"] = {"slow": slow, "hangs": hangs, "raises": raises}[control.staging.allocate]


def _prefer(self: DeviceBackend, request: PreferRequest) -> Sequence[str]:
    chosen = [device.id for device in request.must_include]
    others = sorted(device.id for device in request.available if device.id not in chosen)
    return (chosen + others)[: request.size]


def _wrap_released(cls: type[DeviceBackend], own: dict[str, Any], control: _Control) -> None:
    vendors = cast("Callable[[DeviceBackend, Allocation], Any]", cls.released)

    async def released(self: DeviceBackend, devices: Allocation) -> None:
        control.returned.append(tuple(device.id for device in devices))
        if inspect.iscoroutinefunction(vendors):
            await vendors(self, devices)
        else:
            await anyio.to_thread.run_sync(vendors, self, devices)

    own["released"] = released


def _wrap_prepare(cls: type[DeviceBackend], own: dict[str, Any], seconds: float) -> None:
    vendors = cast("Callable[[DeviceBackend, Allocation], Any]", cls.prepare_container)

    async def prepare_container(self: DeviceBackend, devices: Allocation) -> None:
        await anyio.sleep(seconds)
        if inspect.iscoroutinefunction(vendors):
            await vendors(self, devices)
        else:
            await anyio.to_thread.run_sync(vendors, self, devices)

    own["prepare_container"] = prepare_container


class _Ear(logging.Handler):
    """Hands kdp's log to the instance that it is about, known by the context of the task that speaks."""

    def __init__(self, instance: _Instance) -> None:
        super().__init__(logging.INFO)
        self._instance = instance

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if _speaker.get() is self._instance and len(self._instance.lines) < _KEPT_LINES:
            self._instance.lines.append(record.getMessage())


class _Instance(Instance):
    def __init__(self, manager: PluginManager, control: _Control, levers: Levers, directory: str) -> None:
        self.manager = manager
        self.control = control
        self.lines: list[str] = []
        self.ended = anyio.Event()
        self.leave = anyio.Event()
        self._levers = levers
        self._directory = directory
        self._asked_at: float | None = None
        self._stopped: set[str] = set()

    async def run(self, wake: Callable[[], None], *, task_status: TaskStatus[None]) -> None:
        _speaker.set(self)
        code: int | None = None
        try:
            async with self.manager, anyio.create_task_group() as tasks:
                task_status.started()

                async def leave() -> None:
                    await self.leave.wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(leave)
                await self.manager.failed()
        except* PluginDirectoryGoneError as gone:
            self.lines.append(str(gone.exceptions[0]))
            code = 3  # what kdp.run ends with
        finally:
            now = time.monotonic()
            began = self._asked_at or now
            self.control.released.set()
            self.ending = Ending(seconds=now - began, code=code, asked=self._asked_at is not None)
            self.ended.set()
            wake()

    @override
    async def stop(self, within: float) -> Ending:
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        self.leave.set()
        with anyio.fail_after(within):
            await self.ended.wait()
        assert self.ending is not None
        return self.ending

    @override
    async def kill(self) -> None:
        """End it, and put dead sockets where its own were: what a killed process leaves of itself."""
        with suppress(FileNotFoundError):
            names = [entry.name for entry in os.scandir(self._directory) if entry.name.startswith("kdp-")]
            await self.stop(_PATIENCE)
            for name in names:
                # An error: it is still there.
                with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
                    dead.bind(os.path.join(self._directory, name))

    @override
    def said(self) -> str:
        status = self.manager.status()
        state = [
            f"{r.resource} is {r.state}" + (f": {r.reason}" if r.reason else "") for r in status.resources.values()
        ]
        state += [f"{name} is not ready: {problem}" for name, problem in status.backends if problem]
        return "\n".join([*self.lines[-40:], *state])

    @override
    def usage(self) -> Usage:
        return process_usage(os.getpid())

    @override
    def is_ready(self) -> bool:
        return self.manager.is_ready

    async def _reporter(self) -> Reporter:
        with anyio.move_on_after(_PATIENCE):
            while self.control.reporter is None:  # noqa: ASYNC110 - it comes from a thread
                await anyio.sleep(0.002)
        if self.control.reporter is None:
            raise Failed("the backend's watch() was not called")
        return self.control.reporter

    @override
    async def fail(self, device: str) -> None:
        if not await self._pulled("fail", device):
            (await self._reporter()).fault([device], "made to fail by the conformance kit", kind="conformance")

    @override
    async def heal(self, device: str) -> None:
        if not await self._pulled("heal", device):
            (await self._reporter()).clear([device], kind="conformance")

    @override
    async def vanish(self, device: str) -> None:
        if not await self._pulled("vanish", device):
            self.control.hidden.add(device)
            (await self._reporter()).rescan()

    @override
    async def add(self, device: str = "") -> None:
        if not await self._pulled("add", device):
            if device in self.control.hidden:
                self.control.hidden.discard(device)
            else:
                self.control.added.append(device or f"conformance-added-{len(self.control.added)}")
            (await self._reporter()).rescan()

    async def _pulled(self, lever: Literal["fail", "heal", "vanish", "add"], device: str) -> bool:
        """Use the vendor's levers where there is any: mixing them with the kit's would leave the hardware half changed."""
        if self._levers == Levers():
            return False
        await self._levers.pull(lever, device)
        return True

    @override
    async def grow(self, count: int) -> None:
        self.control.grown = count
        (await self._reporter()).rescan()

    @override
    def entered(self) -> int:
        return self.control.entered

    @override
    def cancelled(self) -> int:
        return self.control.cancelled

    @override
    def returned(self) -> list[tuple[str, ...]]:
        return list(self.control.returned)

    @override
    def release(self) -> None:
        self.control.released.set()


class BackendSubject(Subject):
    """A backend under kdp's own plugin.

    Args:
        make: Makes a fresh backend, each time a new one.
        levers: The hardware's; default: the kit's own, around the backend's hooks.
        registration: The route.
        host_root: Where the node's root directory is.
    """

    def __init__(
        self,
        make: MakeBackend,
        *,
        levers: Levers | None = None,
        registration: Route = "kubelet",
        host_root: str | os.PathLike[str] = "/",
    ) -> None:
        self._make = make
        self._levers = levers or Levers()
        self._route: Route = registration
        self._host = Host(host_root) if os.fspath(host_root) != "/" else None  # then as the backend was made
        self.node_root = os.fspath(host_root)
        self._resource: str | None = None
        self.shares_hardware = self._levers != Levers()

    def tell(self, resource: str) -> None:
        """Say which resource the checks use, as soon as it is known."""
        self._resource = resource

    @override
    def start(
        self, paths: KubeletPaths, staging: Staging, wake: Callable[[], None]
    ) -> AbstractAsyncContextManager[Instance]:
        return self._running(paths, staging, wake)

    @asynccontextmanager
    async def _running(
        self, paths: KubeletPaths, staging: Staging, wake: Callable[[], None]
    ) -> AsyncGenerator[Instance]:
        backend = self._make()
        control = _Control(staging=staging, resource=self._resource or backend.resource or "")
        _instrument(backend, control)
        deadlines = Deadlines(allocate=ALLOCATE_DEADLINE) if staging.allocate == "hangs" else Deadlines()
        manager = PluginManager(
            [backend],
            paths=paths,
            registration=self._route,
            host=self._host,
            deadlines=deadlines,
            pace=OFTEN if staging.asks_often else None,
            health_policy={"flaps": None},  # the kit flips devices more often than any that is worth to be listed
        )
        directory = paths.plugins_registry_dir if self._route == "watcher" else paths.device_plugin_dir
        instance = _Instance(manager, control, self._levers, os.fspath(directory))
        ear, logger = _Ear(instance), logging.getLogger("kdp")
        logger.addHandler(ear)
        refusal = OSError(24, "Too many open files")
        inotify = mock.patch.object(asyncinotify, "Inotify", side_effect=refusal) if staging.without_inotify else None
        if inotify is not None:
            inotify.start()
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(instance.run, wake)
                try:
                    yield instance
                finally:
                    control.released.set()
                    with anyio.CancelScope(shield=True):
                        with suppress(TimeoutError):
                            await instance.stop(_PATIENCE)
                    tasks.cancel_scope.cancel()
        finally:
            logger.removeHandler(ear)
            if inotify is not None:
                inotify.stop()
