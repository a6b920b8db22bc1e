"""A snapshot under a running plugin: hardware fails, vanishes, and returns; events alone bring it to the kubelet."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typing_extensions import override

import kdp
from kdp.hardware import Host, UeventWatch
from kdp.testing import SimulatedKubelet, SysfsTree
from kdp_testkit.patience import PATIENCE
from kdp_testkit.pytest_plugin import NodeFrom

pytestmark = pytest.mark.anyio

RECORDED = Path(__file__).parents[2] / "data/hardware"
BOARD = "/sys/bus/pci/devices/0000:41:00.0"


class Fpga(kdp.DeviceBackend):
    resource = "example.com/fpga"
    poll_interval = 3600

    def __init__(self, host: Host) -> None:
        self.host = host

    @override
    def discover(self) -> list[kdp.Device]:
        return [
            self._device(board, port)
            for board in self.host.pci_functions(driver="dfl-pci")
            for port in board.children("fpga_region/region*/dfl-port.*")
        ]

    def _device(self, board: kdp.hardware.PciFunction, port: kdp.hardware.Directory) -> kdp.Device:
        errors = port.hexadecimal("errors/errors")
        sound = errors.value == 0
        return kdp.Device(
            id=f"{board.address}-{port.integer('id').or_else(0)}",
            unit=board.address,
            numa_nodes=port.numa_nodes,
            health=kdp.Health.healthy()
            if sound
            else kdp.Health.unhealthy(errors.problem or f"error {errors.value:#x}"),
            edits=kdp.ContainerEdits.of_node(port.node or "/dev/none"),
        )

    @override
    async def watch(self, report: kdp.Reporter) -> None:
        async with UeventWatch(self.host, subsystems={"pci", "platform"}) as events:
            while not report.stopping.is_set():
                await events.events(at_most=3600)
                report.rescan()


async def test_the_kubelet_hears_of_each_change_by_events_alone(
    kubelet: SimulatedKubelet, node_from: NodeFrom, figure: Callable[[str, float, str], None]
) -> None:
    tree: SysfsTree = node_from(RECORDED / "dfl-6.1.tar.gz")
    async with kubelet.serving(Fpga(tree.host)):
        await kubelet.until(allocatable={Fpga.resource: 3}, timeout=PATIENCE)

        started = time.monotonic()
        path = tree.fail("/sys/class/fpga_region/region3/dfl-port.2/errors/errors", errno.EIO)
        tree.uevent("change", path.rpartition("/errors/")[0])
        await kubelet.until(allocatable={Fpga.resource: 2}, timeout=PATIENCE)
        figure("an attribute that fails reaches the kubelet after", (time.monotonic() - started) * 1000, "ms")

        tree.write(path, "0x0")
        tree.uevent("change", path.rpartition("/errors/")[0])
        await kubelet.until(allocatable={Fpga.resource: 3}, timeout=PATIENCE)

        # Pulled out without a word of the kernel: the watched directory of the node is enough.
        tree.vanish(BOARD)
        await kubelet.until(allocatable={Fpga.resource: 1}, timeout=PATIENCE)
        tree.bring_back(BOARD)
        await kubelet.until(allocatable={Fpga.resource: 3}, timeout=PATIENCE)
