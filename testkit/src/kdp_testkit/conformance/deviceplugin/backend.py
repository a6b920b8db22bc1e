"""`BackendSubject`: a vendor's class under kdp's own `PluginManager`, in this process.

The kit reaches what a foreign program hides: it derives a class from the vendor's, with a few hooks of its own around
the vendor's, so that a device can fail, vanish or appear, and Allocate can hang, on any machine and without the
hardware. The vendor's devices and edits are used as they are.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

import anyio
import asyncinotify
import attrs
from typing_extensions import override

from kdp.deviceplugin import ManagerOptions, PluginManager
from kdp.deviceplugin.options import Pace
from kdp.errors import PluginDirectoryGoneError
from kdp.hardware import Host
from kdp.model.backend import Allocation, DeviceBackend, PreferRequest
from kdp.model.edits import ContainerEdits
from kdp.supervision.supervisor import Deadlines

from ..in_process import Control, InProcess, after, before, called, derive
from ..instance import Instance, Levers, SharedLevers
from .subject import SECRET, Staging, Subject

if TYPE_CHECKING:
    from pathlib import Path

    from kdp.kubelet.paths import KubeletPaths
    from kdp.model.devices import Device

    from ..checks import Route

MakeBackend = Callable[[], DeviceBackend]

ALLOCATE_DEADLINE = 1.5
"""Seconds instead of 20 that a hanging Allocate gets in the check of it."""

OFTEN = Pace(
    gap=0.2,
    look=0.1,
    settled=0.2,
    settling=0.0,
    between=0.05,
    absent=0.2,
    after_connect=0.2,
    period=0.2,
    again=0.1,
    lasting=0.3,
)
"""How often a plugin asks the pod-resources API in the checks of what it makes of the answers."""

SLOW = 0.5
"""Seconds that a slow Allocate takes."""


@attrs.define(kw_only=True, eq=False)
class _Control(Control):
    """What the kit does to one backend; read in the hooks' threads."""

    staging: Staging
    resource: str
    added: list[str] = attrs.field(factory=list[str])
    grown: int = 0
    units: dict[str, str] = attrs.field(factory=dict[str, str])
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
        model = next((device for device in mine if device.health.is_healthy), mine[0])
        if self.staging.devices is not None:
            mine = [_copy(model, f"conformance-{i}") for i in range(self.staging.devices)]
        mine += [_copy(model, name) for name in self.added]
        if self.grown:
            mine = [_copy(model, f"conformance-{i:051d}") for i in range(self.grown)]
        if self.staging.numa is not None:
            numa = self.staging.numa
            mine = [attrs.evolve(device, numa_nodes=tuple(numa[i % len(numa)])) for i, device in enumerate(mine)]
        devices = [device for device in devices if (device.resource or own) != self.resource] + mine
        if self.staging.second:
            devices += [
                attrs.evolve(_copy(model, f"second-{i}"), resource=f"{self.resource[:50]}-second") for i in range(2)
            ]
        self.units = {device.id: device.unit for device in mine}
        return [device for device in devices if device.id not in self.hidden]


def _copy(device: Device, name: str) -> Device:
    """Return the same device once more, as a card of its own: it takes nothing of the other cards' counters."""
    return attrs.evolve(device, id=name, unit=name, consumes={})


def _stage(backend: DeviceBackend, control: _Control) -> None:
    """Put the kit's hooks around the backend's."""
    if backend.unused_hooks:  # the kit may want one of these called, though not the vendor's
        derive(backend, {"unused_hooks": (), **{hook: getattr(DeviceBackend, hook) for hook in backend.unused_hooks}})
        vars(backend).pop("unused_hooks", None)
    cls, staging = type(backend), control.staging
    hooks: dict[str, object] = {
        "discover": after(cls.discover, lambda self, found: control.staged(found, self.resource)),
        "watch": before(cls.watch, control.reports),
    }
    if staging.allocate != "plain":
        hooks["allocate"] = _allocate(cls.allocate, control)
    if staging.prefers is False:
        hooks["prefer"] = DeviceBackend.prefer
    elif staging.prefers and cls.prefer is DeviceBackend.prefer:
        hooks["prefer"] = _prefer
    if staging.asks_often:
        hooks["released"] = before(
            cls.released, lambda devices: control.returned.append(tuple(device.id for device in devices))
        )
    if staging.prepares is not None:
        hooks["prepare_container"] = _prepare(cls.prepare_container, staging.prepares)
    derive(backend, hooks)


def _allocate(vendors: Callable[..., Any], control: _Control) -> Callable[..., Any]:
    """Return an Allocate that is slow, hangs, or raises, until the control is released."""

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
            return ContainerEdits()  # the vendor's own call may take longer than a plugin waits at its end
        return await called(vendors, self, devices)

    def hangs(_self: DeviceBackend, _devices: Allocation) -> Any:
        control.entered += 1
        control.released.wait()  # nobody can cancel it, as with a driver's ioctl
        control.entered -= 1
        return ContainerEdits()  # nobody waits for it any more

    async def raises(self: DeviceBackend, devices: Allocation) -> Any:
        if not control.released.is_set():
            raise RuntimeError(f"the library said: login with {SECRET} failed")
        return await called(vendors, self, devices)

    return {"slow": slow, "hangs": hangs, "raises": raises}[control.staging.allocate]


def _prefer(_self: DeviceBackend, request: PreferRequest) -> Sequence[str]:
    chosen = [device.id for device in request.must_include]
    others = sorted(device.id for device in request.available if device.id not in chosen)
    return (chosen + others)[: request.size]


def _prepare(vendors: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    async def prepare_container(self: DeviceBackend, devices: Allocation) -> None:
        await anyio.sleep(seconds)
        await called(vendors, self, devices)

    return prepare_container


class _Instance(InProcess):
    log_level = logging.INFO

    def __init__(self, manager: PluginManager, control: _Control, levers: SharedLevers, directory: Path) -> None:
        super().__init__(levers, control)
        self.manager = manager
        self.control = control
        self._directory = directory

    @override
    async def serve(self, started: Callable[[], None]) -> int | None:
        code: int | None = None
        try:
            async with self.manager, anyio.create_task_group() as tasks:
                started()

                async def leave() -> None:
                    await self.leave.wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(leave)
                await self.manager.failed()
        except* PluginDirectoryGoneError as gone:
            self.lines.append(str(gone.exceptions[0]))
            code = 3  # what kdp.run ends with
        return code

    @override
    def sockets(self) -> Iterable[Path]:
        return self._directory.glob("kdp-*")

    @override
    def output(self) -> str:
        status = self.manager.status()
        state = [
            f"{r.resource} is {r.state}" + (f": {r.reason}" if r.reason else "") for r in status.resources.values()
        ]
        state += [f"{name} is not ready: {problem}" for name, problem in status.backends if problem]
        return "\n".join([*list(self.lines)[-40:], *state])

    @override
    def is_ready(self) -> bool:
        return self.manager.is_ready

    @override
    async def vanish(self, device: str) -> None:
        if not await self.pulled("vanish", device):
            self.control.hidden.add(device)
            (await self.reporter()).rescan()

    @override
    async def add(self, device: str = "") -> None:
        if not await self.pulled("add", device):
            if device in self.control.hidden:
                self.control.hidden.discard(device)
            else:
                self.control.added.append(device or f"conformance-added-{len(self.control.added)}")
            (await self.reporter()).rescan()

    @override
    def mates(self, device: str) -> set[str]:
        units = self.control.units
        return {other for other, unit in units.items() if unit == units.get(device) and other != device}

    @override
    async def grow(self, count: int) -> None:
        self.control.grown = count
        (await self.reporter()).rescan()

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
        self._levers = SharedLevers(levers)
        self._route: Route = registration
        self._host = Host(host_root) if os.fspath(host_root) != "/" else None  # then as the backend was made
        self.node_root = os.fspath(host_root)
        self._resource: str | None = None
        self.shares_hardware = self._levers.levers != Levers()

    @override
    def tell(self, resource: str) -> None:
        self._resource = self._levers.resource = resource

    @override
    @asynccontextmanager
    async def start(self, paths: KubeletPaths, staging: Staging, wake: Callable[[], None]) -> AsyncGenerator[Instance]:
        backend = self._make()
        control = _Control(staging=staging, resource=self._resource or backend.resource or "")
        _stage(backend, control)
        manager = PluginManager(
            [backend],
            ManagerOptions(
                paths=paths,
                state_dir=paths.device_plugin_dir.parent / "state",
                registration=self._route,
                host=self._host,
                deadlines=Deadlines(allocate=ALLOCATE_DEADLINE) if staging.allocate == "hangs" else Deadlines(),
                pace=OFTEN if staging.asks_often else None,
                health_policy={"flaps": None},  # the kit flips devices more often than any that is worth to be listed
            ),
        )
        directory = paths.plugins_registry_dir if self._route == "watcher" else paths.device_plugin_dir
        instance = _Instance(manager, control, self._levers, directory)
        with _without_inotify() if staging.without_inotify else nullcontext():
            async with instance.running(wake):
                yield instance


def _without_inotify() -> AbstractContextManager[object]:
    refusal = OSError(24, "Too many open files")
    return mock.patch.object(asyncinotify, "Inotify", side_effect=refusal)
