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


async def calm(kubelet: SimulatedKubelet) -> None:
    """Wait until a change is the first one, which is told at once, and none of a burst."""
    last = lists(kubelet)[-1].time
    await until(lambda: time.monotonic() > last + inventory.MIN_GAP)


def node(path: Path) -> kdp.Device:
    return kdp.Device(id=path.name, edits=kdp.ContainerEdits.of_node(path))


async def test_a_device_node_that_comes_and_goes(kubelet: SimulatedKubelet, figure: Figure, tmp_path: Path) -> None:
    path = tmp_path / "widget0"
    path.symlink_to("/dev/null")
    async with connected(kubelet, Widgets(node(path))):
        for healthy in (0, 1):
            await calm(kubelet)
            started = time.monotonic()
            path.symlink_to("/dev/null") if healthy else path.unlink()
            await kubelet.until(allocatable={RESOURCE: healthy})
            what = "comes" if healthy else "goes"
            figure(f"device node {what} -> list", (lists(kubelet)[-1].time - started) * 1e3, "ms")
            assert lists(kubelet)[-1].time - started < PATIENCE


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to make a device node")
async def test_the_nodes_dev_is_elsewhere(kubelet: SimulatedKubelet, figure: Figure, tmp_path: Path) -> None:
    """As in a DaemonSet that has the node's /dev at /host/dev."""
    dev = tmp_path / "dev"
    dev.mkdir()
    device = kdp.Device(id="w0", edits=kdp.ContainerEdits.of_node("/dev/widget0"))
    async with connected(kubelet, Widgets(device), host=Host(tmp_path)):
        await kubelet.until(allocatable={RESOURCE: 0})
        os.mknod(dev / "new", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        await calm(kubelet)
        started = time.monotonic()
        os.rename(dev / "new", dev / "widget0")
        await kubelet.until(allocatable={RESOURCE: 1})
        figure("device node comes below another root -> list", (lists(kubelet)[-1].time - started) * 1e3, "ms")
        [reply] = await kubelet.plugin(RESOURCE).allocate(["w0"])
        assert [spec.host_path for spec in reply.devices] == ["/dev/widget0"]


async def test_a_device_directory_that_comes_late(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    """As /dev/dri does when its driver is loaded."""
    path = tmp_path / "widgets" / "widget0"
    backend = Widgets(node(path))
    async with connected(kubelet, backend):
        await kubelet.until(allocatable={RESOURCE: 0})
        path.parent.mkdir()
        path.symlink_to("/dev/null")
        await kubelet.until(allocatable={RESOURCE: 1})


async def test_it_discovers_again_after_a_node_event(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    path = tmp_path / "widget0"
    path.symlink_to("/dev/null")
    backend = Widgets(node(path))
    async with connected(kubelet, backend):
        path.unlink()
        await until(lambda: backend.discoveries >= 2)
