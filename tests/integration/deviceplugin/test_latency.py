"""How fast an event is where it must be. No poll can help: it comes once an hour. Verdicts are generous."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

import kdp
from kdp.deviceplugin import inventory
from kdp.hardware import Host
from kdp.testing import SimulatedKubelet
from kdp_testkit.patience import PATIENCE

from .helpers import RESOURCE, Figure, Widgets, connected, lists, until

"""Seconds; the aims are some milliseconds."""


async def calm(kubelet: SimulatedKubelet) -> None:
    """Wait until a change is the first one, which is told at once, and none of a burst."""
    last = lists(kubelet)[-1].time
    await until(lambda: time.monotonic() > last + inventory.MIN_GAP)


def node(path: Path) -> kdp.Device:
    return kdp.Device(id=path.name, edits=kdp.ContainerEdits.of_node(path))


async def test_a_reported_fault_reaches_the_kubelet(k137: SimulatedKubelet, figure: Figure) -> None:
    backend = Widgets(*(f"w{i}" for i in range(8)))
    async with connected(k137, backend):
        report = await backend.report()
        worst = 0.0
        for i in range(8):
            await calm(k137)
            started = time.monotonic()
            report.fault(f"w{i}", "broken")
            await k137.until(allocatable={RESOURCE: 7 - i})
            worst = max(worst, lists(k137)[-1].time - started)
        figure("Reporter.fault -> list, worst of 8", worst * 1e3, "ms")
        assert worst < PATIENCE


async def test_a_reported_change_reaches_the_kubelet(k137: SimulatedKubelet, figure: Figure) -> None:
    backend = Widgets("w0")
    async with connected(k137, backend):
        report = await backend.report()
        backend.devices.append(kdp.Device(id="w1"))
        await calm(k137)
        started = time.monotonic()
        report.rescan()
        await k137.until(capacity={RESOURCE: 2})
        figure("Reporter.rescan -> list", (lists(k137)[-1].time - started) * 1e3, "ms")
        assert lists(k137)[-1].time - started < PATIENCE


async def test_a_device_node_that_comes_and_goes(k137: SimulatedKubelet, figure: Figure, tmp_path: Path) -> None:
    path = tmp_path / "widget0"
    path.symlink_to("/dev/null")
    async with connected(k137, Widgets(node(path))):
        for healthy in (0, 1):
            await calm(k137)
            started = time.monotonic()
            path.symlink_to("/dev/null") if healthy else path.unlink()
            await k137.until(allocatable={RESOURCE: healthy})
            what = "comes" if healthy else "goes"
            figure(f"device node {what} -> list", (lists(k137)[-1].time - started) * 1e3, "ms")
            assert lists(k137)[-1].time - started < PATIENCE


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to make a device node")
async def test_the_nodes_dev_is_elsewhere(k137: SimulatedKubelet, figure: Figure, tmp_path: Path) -> None:
    """As in a DaemonSet that has the node's /dev at /host/dev."""
    dev = tmp_path / "dev"
    dev.mkdir()
    device = kdp.Device(id="w0", edits=kdp.ContainerEdits.of_node("/dev/widget0"))
    async with connected(k137, Widgets(device), host=Host(tmp_path)):
        await k137.until(allocatable={RESOURCE: 0})
        os.mknod(dev / "new", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        await calm(k137)
        started = time.monotonic()
        os.rename(dev / "new", dev / "widget0")
        await k137.until(allocatable={RESOURCE: 1})
        figure("device node comes below another root -> list", (lists(k137)[-1].time - started) * 1e3, "ms")
        [reply] = await k137.plugin(RESOURCE).allocate(["w0"])
        assert [spec.host_path for spec in reply.devices] == ["/dev/widget0"]


async def test_a_device_directory_that_comes_late(k137: SimulatedKubelet, tmp_path: Path) -> None:
    """As /dev/dri does when its driver is loaded."""
    path = tmp_path / "widgets" / "widget0"
    backend = Widgets(node(path))
    async with connected(k137, backend):
        await k137.until(allocatable={RESOURCE: 0})
        path.parent.mkdir()
        path.symlink_to("/dev/null")
        await k137.until(allocatable={RESOURCE: 1})


async def test_it_discovers_again_after_a_node_event(k137: SimulatedKubelet, tmp_path: Path) -> None:
    path = tmp_path / "widget0"
    path.symlink_to("/dev/null")
    backend = Widgets(node(path))
    async with connected(k137, backend):
        path.unlink()
        await until(lambda: backend.discoveries >= 2)
