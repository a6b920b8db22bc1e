"""What the tests of the plugin share: a backend that does as it is told, and waiting for what is not the kubelet's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from typing_extensions import override

import kdp
from kdp.deviceplugin.manager import PluginManager
from kdp.deviceplugin.options import ManagerOptions
from kdp.supervision.supervisor import Deadlines
from kdp.testing import SimulatedKubelet, events
from kdp_testkit.patience import PATIENCE

RESOURCE = "example.com/widget"
NEVER = 3600.0
"""Seconds between polls in these tests: no poll can help."""

Figure = Callable[[str, float, str], None]
"""The fixture ``figure``: reports what was measured."""

PROFILES = ["k134", "k136", "k137"]


class Widgets(kdp.DeviceBackend):
    """Serves the devices in ``devices``; its watch lets a test report as a vendor's event would."""

    resource: str | None = RESOURCE
    poll_interval = NEVER

    def __init__(self, *devices: kdp.Device | str, resource: str | None = RESOURCE) -> None:
        self.resource = resource
        self.devices: list[Any] = [kdp.Device(id=d) if isinstance(d, str) else d for d in devices]
        self.discoveries = 0
        self.reporter: kdp.Reporter | None = None

    @override
    def discover(self) -> Iterable[kdp.Device]:
        self.discoveries += 1
        return list(self.devices)

    @override
    def watch(self, report: kdp.Reporter) -> None:
        self.reporter = report
        report.stopping.wait()

    async def report(self) -> kdp.Reporter:
        """Return the reporter, as soon as there is one."""
        await until(lambda: self.reporter is not None)
        assert self.reporter is not None
        return self.reporter


class Block:
    """A blocking call that nobody can cancel: a read from a pipe that stays empty until the test is over."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        self._entered = threading.Event()
        self._over = threading.Event()

    def __call__(self) -> None:
        self._entered.set()
        os.read(self._read_end, 1)
        self._over.set()

    @property
    def is_entered(self) -> bool:
        return self._entered.is_set()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def release(self) -> None:
        """Let every call return, now and later."""
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1


class Stuck(Widgets):
    """Widgets whose allocate does not return while it is blocked."""

    def __init__(self, block: Block) -> None:
        super().__init__("w0")
        self._block = block

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        self._block()
        return kdp.ContainerEdits()


async def until(condition: Callable[[], object], *, story: Callable[[], str] = str) -> None:
    """Wait until something holds that no event of the kubelet tells of."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not reached in {PATIENCE:g} s\n{story()}")
        await anyio.sleep(0.005)


@asynccontextmanager
async def running(
    kubelet: SimulatedKubelet, *backends: kdp.DeviceBackend, **options: Any
) -> AsyncIterator[PluginManager]:
    """Run the plugins of these backends on this kubelet."""
    async with PluginManager(backends, ManagerOptions(**{"paths": kubelet.paths, **options})) as manager:
        yield manager


@asynccontextmanager
async def connected(
    kubelet: SimulatedKubelet, *backends: kdp.DeviceBackend, **options: Any
) -> AsyncIterator[PluginManager]:
    """The same, once every resource has a stream and the kubelet a list of it."""
    async with running(kubelet, *backends, **options) as manager:
        named = {backend.resource for backend in backends if backend.resource is not None}
        await until(
            lambda: manager.is_ready and named <= manager.status().resources.keys(),
            story=lambda: f"{manager.status()}\n{kubelet.events.story()}",
        )
        for name in manager.status().resources:
            await kubelet.until(streaming=name)
        yield manager


def registers(kubelet: SimulatedKubelet, resource: str = RESOURCE) -> list[events.RegisterReceived]:
    return kubelet.events.of(events.RegisterReceived, resource=resource)


def registered_times(kubelet: SimulatedKubelet, times: int) -> Callable[[], bool]:
    """A condition: Register came so many times."""
    return lambda: len(registers(kubelet)) == times


def lists(kubelet: SimulatedKubelet, resource: str = RESOURCE) -> list[events.ListReceived]:
    return kubelet.events.of(events.ListReceived, resource=resource)


def own_sockets(directory: Path) -> set[str]:
    """The names of kdp's sockets, and of the directory in which they are bound."""
    return {p.name for p in directory.rglob("*") if p.name.removeprefix(".").startswith("kdp")}


QUICK = Deadlines(discover=0.3, open=0.3, close=0.3, allocate=0.3, prefer=0.3, prepare_container=0.3)
"""Deadlines of hooks for tests in which one hangs."""
