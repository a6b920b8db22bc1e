"""`DraBackendSubject`: a vendor's class under kdp's own `DraDriver`, in this process.

It speaks to the API server over HTTP, as on a node. The kit makes a device fail or heal by levers, or through the backend's
own reports.
"""

from __future__ import annotations

import inspect
import os
import socket
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
from typing_extensions import override

from kdp.dra.driver import DraDriver
from kdp.dra.kube import KubeApi

from ..backend import process_usage
from ..model import NotApplicable
from ..subject import Ending, Instance, Levers, Usage
from .subject import DraNode, DraSubject

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from anyio.abc import TaskStatus

    from kdp.backend import DeviceBackend, Reporter

__all__ = ["DraBackendSubject"]

_PATIENCE = 10.0


class _Instance(Instance):
    def __init__(self, driver: DraDriver, node: DraNode, levers: Levers, reporters: list[Reporter]) -> None:
        self._driver = driver
        self._node = node
        self._levers = levers
        self._reporters = reporters
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
        state = [f"{each.driver} is {each.state}: {each.reason}" for each in status.drivers.values() if each.reason]
        return "\n".join(state + [f"{name} is not ready: {problem}" for name, problem in status.backends if problem])

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

    def _reporter(self) -> Reporter:
        if not self._reporters:
            raise NotApplicable("the backend was not asked for reports yet, and the lever was not given")
        return self._reporters[-1]


class DraBackendSubject(DraSubject):
    """A class in this process.

    Args:
        make: Makes a fresh backend.
        levers: How the hardware is made to fail and to heal.
        settings: More for `DraDriver`.
    """

    def __init__(self, make: Callable[[], DeviceBackend], *, levers: Levers | None = None, **settings: Any) -> None:
        self._make = make
        self._levers = levers or Levers()
        self._settings = settings

    @override
    @asynccontextmanager
    async def start(self, node: DraNode, wake: Callable[[], None]) -> AsyncGenerator[Instance]:
        backend = self._make()
        reporters: list[Reporter] = []
        _listen(backend, reporters)
        async with KubeApi(node.kubeconfig) as api, anyio.create_task_group() as tasks:
            driver = DraDriver(
                [backend], api=api, node=node.name, paths=node.paths, cdi=Path(node.cdi), **self._settings
            )
            instance = _Instance(driver, node, self._levers, reporters)
            await tasks.start(instance.run, wake)
            try:
                yield instance
            finally:
                with anyio.CancelScope(shield=True):
                    await instance.stop(_PATIENCE)


def _listen(backend: DeviceBackend, reporters: list[Reporter]) -> None:
    """Derive a class whose ``watch`` remembers the reporter before the vendor's own runs."""
    cls = type(backend)
    vendors = cast("Callable[[DeviceBackend, Reporter], Any]", cls.watch)
    if inspect.iscoroutinefunction(vendors):

        async def watch_async(self: DeviceBackend, report: Reporter) -> None:
            reporters.append(report)
            await vendors(self, report)

        watch: Any = watch_async
    else:

        def watch_plain(self: DeviceBackend, report: Reporter) -> None:
            reporters.append(report)
            vendors(self, report)

        watch = watch_plain
    backend.__class__ = cast(
        "type[DeviceBackend]", type(cls.__name__, (cls,), {"__module__": cls.__module__, "watch": watch})
    )
