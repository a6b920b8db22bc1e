"""`DraBackendSubject`: a vendor's class under kdp's own `DraDriver`, in this process.

It speaks to the API server over HTTP, as on a node. The kit makes a device fail or heal by levers, or through the backend's
own reports.
"""

from __future__ import annotations

import inspect
import logging
import os
import socket
import time
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
from typing_extensions import override

from kdp.cluster.client import KubeApi
from kdp.dra.driver import DraDriver
from kdp.model.backend import DeviceBackend
from kdp.model.devices import Device

from ..backend import process_usage
from ..model import NotApplicable
from ..subject import Ending, Instance, Levers, Usage
from .subject import DraNode, DraSubject

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from anyio.abc import TaskStatus

    from kdp.model.backend import Reporter

__all__ = ["DraBackendSubject"]

_PATIENCE = 10.0
_NO_QUARANTINE = {"flaps": None}
"""The kit flips devices more often than any that is worth to be offered."""


class _Instance(Instance):
    def __init__(self, driver: DraDriver, node: DraNode, levers: Levers, hardware: _Hardware) -> None:
        self._driver = driver
        self._node = node
        self._levers = levers
        self._hardware = hardware
        self._leave = anyio.Event()
        self._ended = anyio.Event()
        self._asked_at: float | None = None

    async def run(self, wake: Callable[[], None], *, task_status: TaskStatus[None]) -> None:
        """Live until `stop`."""
        try:
            async with self._driver:
                task_status.started()
                await self._leave.wait()
        finally:
            now = time.monotonic()
            self.ending = Ending(seconds=now - (self._asked_at or now), code=None, asked=self._asked_at is not None)
            self._ended.set()
            wake()

    @override
    async def stop(self, within: float) -> Ending:
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        self._leave.set()
        with anyio.fail_after(within):
            await self._ended.wait()
        assert self.ending is not None
        return self.ending

    @override
    async def kill(self) -> None:
        """End it, and put dead sockets where its own were: what a killed process leaves of itself."""
        roots = self._node.paths.plugins_registry_dir, self._node.paths.plugins_dir
        left = [path for root in roots for path in root.rglob("*") if path.is_socket()]
        await self.stop(_PATIENCE)
        for path in left:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
                dead.bind(os.fspath(path))

    @override
    def said(self) -> str:
        status = self._driver.status()
        drivers = status.drivers.values()
        state = [f"{each.driver} is {each.state}: {each.reason}" for each in drivers if each.reason]
        state += [f"{each.driver}: {each.problem}" for each in drivers if each.problem]
        state += [f"{name} is not ready: {problem}" for name, problem in status.backends if problem]
        return "\n".join((*self._hardware.log, *state))

    @override
    def usage(self) -> Usage:
        return process_usage(os.getpid())

    @override
    async def fail(self, device: str) -> None:
        if self._levers.fail is not None:
            await self._levers.pull("fail", device)
            return
        self._reporter().fault([device], "made to fail by the conformance kit", kind="conformance")

    @override
    async def heal(self, device: str) -> None:
        if self._levers.heal is not None:
            await self._levers.pull("heal", device)
            return
        self._reporter().clear([device], kind="conformance")

    @override
    async def vanish(self, device: str) -> None:
        self._hardware.gone.add(device)
        self._driver.rescan()

    @override
    async def add(self, device: str = "") -> None:
        if not device:
            raise NotApplicable("the kit cannot make another device of this backend's")
        self._hardware.gone.discard(device)
        self._driver.rescan()

    @override
    async def fail_saying(self, device: str, message: str) -> None:
        self._reporter().fault([device], message, kind="conformance")

    @override
    async def spoil(self, is_spoiled: bool) -> None:
        self._hardware.is_spoiled = is_spoiled
        self._driver.rescan()

    @override
    async def jam(self, is_jammed: bool) -> None:
        if not self._hardware.can_jam:
            raise NotApplicable("the backend has no hook `released` that could fail")
        self._hardware.is_jammed = is_jammed

    @override
    def touched(self) -> int | None:
        return self._hardware.allocations

    def _reporter(self) -> Reporter:
        if not self._hardware.reporters:
            raise NotApplicable("the backend was not asked for reports yet, and the lever was not given")
        return self._hardware.reporters[-1]


class DraBackendSubject(DraSubject):
    """A class in this process.

    Args:
        make: Makes a fresh backend.
        levers: How the hardware is made to fail and to heal.
        previous: The version before it.
        settings: More for `DraDriver`.
    """

    can_reboot = True
    takes_grace = True

    def __init__(
        self,
        make: Callable[[], DeviceBackend],
        *,
        levers: Levers | None = None,
        previous: DraSubject | None = None,
        **settings: Any,
    ) -> None:
        self.previous = previous
        self._make = make
        self._levers = levers or Levers()
        self._settings = settings

    @override
    def extended(self) -> str:
        return self._make().resource or ""

    @override
    @asynccontextmanager
    async def start(self, node: DraNode, wake: Callable[[], None]) -> AsyncGenerator[Instance]:
        backend = self._make()
        hardware = _Hardware(backend)
        _LOG.set(hardware.log)
        _listen()
        async with KubeApi(node.kubeconfig) as api, anyio.create_task_group() as tasks:
            settings: dict[str, Any] = {
                "pod_uid": node.pod_uid or None,
                "boot_id": node.boot_id,
                "claim_grace": node.grace,
                "health_policy": _NO_QUARANTINE,
                **self._settings,
            }
            driver = DraDriver([backend], api=api, node=node.name, paths=node.paths, cdi=Path(node.cdi), **settings)
            instance = _Instance(driver, node, self._levers, hardware)
            await tasks.start(instance.run, wake)
            try:
                yield instance
            finally:
                with anyio.CancelScope(shield=True):
                    await instance.stop(_PATIENCE)


_LOG: ContextVar[list[str] | None] = ContextVar("kdp-conformance-log", default=None)
"""Where the lines go that an instance's tasks log: checks run beside one another, each with instances of its own."""


class _Listener(logging.Handler):
    @override
    def emit(self, record: logging.LogRecord) -> None:
        lines = _LOG.get()
        if lines is not None:
            lines.append(record.getMessage())


_LISTENER = _Listener(logging.WARNING)


def _listen() -> None:
    """Keep what kdp logs from now on; once for the process."""
    logging.getLogger("kdp").addHandler(_LISTENER)  # a second time is no change


class _Hardware:
    """What the kit sees of a backend, and does to it: a class derived from the vendor's stands between."""

    def __init__(self, backend: DeviceBackend) -> None:
        self.reporters: list[Reporter] = []
        self.gone: set[str] = set()
        self.allocations: int | None = None
        self.is_spoiled = False
        self.is_jammed = False
        self.log: list[str] = []
        cls = type(backend)
        self.can_jam = cls.released is not DeviceBackend.released
        hooks: dict[str, Any] = {"__module__": cls.__module__}
        hooks["watch"] = _before(cls.watch, self.reporters.append)
        hooks["discover"] = _after(cls.discover, self._changed)
        if cls.allocate is not DeviceBackend.allocate:
            self.allocations = 0
            hooks["allocate"] = _before(cls.allocate, self._count)
        if self.can_jam:
            hooks["released"] = _before(cls.released, self._refuse)
        backend.__class__ = cast("type[DeviceBackend]", type(cls.__name__, (cls,), hooks))

    def _changed(self, devices: Iterable[Device]) -> list[Device]:
        found = [each for each in devices if each.id not in self.gone]
        spoiled = Device(id="spoiled", attributes={f"a{number}": number for number in range(33)})
        return [*found, spoiled] if self.is_spoiled else found

    def _count(self, _: object) -> None:
        self.allocations = (self.allocations or 0) + 1

    def _refuse(self, _: object) -> None:
        if self.is_jammed:
            raise RuntimeError("made to fail by the conformance kit")


def _before(hook: Callable[..., Any], call: Callable[[Any], object]) -> Callable[..., Any]:
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


def _after(hook: Callable[..., Any], change: Callable[[Any], object]) -> Callable[..., Any]:
    """Return a hook without arguments whose result is changed."""
    if inspect.iscoroutinefunction(hook):

        async def asynchronous(self: DeviceBackend) -> Any:
            return change(await hook(self))

        return asynchronous

    def plain(self: DeviceBackend) -> Any:
        return change(hook(self))

    return plain
