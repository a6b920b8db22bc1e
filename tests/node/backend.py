"""A backend for the tests of a node, and running it beside a kubelet."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import TaskStatus
from typing_extensions import override

import kdp
from kdp.deviceplugin.manager import PluginManager
from kdp.deviceplugin.options import ManagerOptions
from kdp.kubelet import KubeletPaths
from kdp_testkit.patience import PATIENCE

__all__ = ["RESOURCE", "Figure", "Instance", "Widgets", "eventually", "running"]

RESOURCE = "example.com/widget"
Figure = Callable[[str, float, str], None]


class Widgets(kdp.DeviceBackend):
    """Devices that all are /dev/null in a container; a test changes them, and says so as a vendor's event would."""

    resource: str | None = RESOURCE
    poll_interval = 3600.0

    def __init__(self, *ids: str, resource: str = RESOURCE) -> None:
        self.resource = resource
        self.devices = {id_: kdp.Device(id=id_) for id_ in ids}
        self.calls: list[tuple[str, ...]] = []
        self.reporter: kdp.Reporter | None = None

    @override
    def discover(self) -> Iterable[kdp.Device]:
        return list(self.devices.values())

    @override
    def watch(self, report: kdp.Reporter) -> None:
        self.reporter = report
        report.stopping.wait()

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        ids = sorted(device.id for device in devices)
        self.calls.append(("allocate", *ids))
        return kdp.ContainerEdits(
            env={"WIDGETS": ",".join(ids)},
            device_nodes=[kdp.DeviceNode(host_path="/dev/null", container_path=f"/dev/{id_}") for id_ in ids],
        )

    def put(self, *devices: kdp.Device) -> None:
        """Have these devices from now on instead."""
        self.devices = {device.id: device for device in devices}
        assert self.reporter is not None
        self.reporter.rescan()


@asynccontextmanager
async def running(paths: KubeletPaths, *backends: kdp.DeviceBackend, **options: Any) -> AsyncIterator[PluginManager]:
    """Run plugins of these backends beside the kubelet that is there."""
    async with PluginManager(backends, ManagerOptions(paths=paths, **options)) as manager:
        yield manager


class Instance:
    """A plugin whose life overlaps that of another one."""

    def __init__(self, paths: KubeletPaths, *backends: kdp.DeviceBackend) -> None:
        self._paths = paths
        self._backends = backends
        self._leave = anyio.Event()
        self._left = anyio.Event()

    async def run(self, *, task_status: TaskStatus[PluginManager] = anyio.TASK_STATUS_IGNORED) -> None:
        async with running(self._paths, *self._backends) as manager:
            task_status.started(manager)
            await self._leave.wait()
        self._left.set()

    async def stop(self) -> None:
        """Let it end in good order."""
        self._leave.set()
        await self._left.wait()


async def eventually(condition: Callable[[], object], *, seconds: float = PATIENCE) -> None:
    """Wait for what the kubelet does not tell."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come about in {seconds:g} s")
        await anyio.sleep(0.005)
