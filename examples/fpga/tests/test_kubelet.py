"""The whole way: a recorded node that changes, kdp, and a kubelet. What is told by the kernel is not polled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import kdp
from kdp.testing import SimulatedKubelet, SysfsTree
from kdp_fpga import Fpga
from kdp_fpga.recorded import NODE

TWO_PORTS = "fpga.intel.com/af-992.d84.mSarbWySWmiqvKfYTFRXONhCTcSko8QT-J5DNoP5BAs"
ONE_PORT = "fpga.intel.com/af-992.f7d.mSarbWySWmiqvKfYTFRXOPffQFy9es9yIvFEsLk6zRg"
BOARD = "/sys/bus/pci/devices/0000:41:00.0"

NodeFrom = Callable[[Path], SysfsTree]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def node(node_from: NodeFrom) -> SysfsTree:
    return node_from(NODE)


def _backend(node: SysfsTree, poll: float | None) -> Fpga:
    backend = Fpga(node.host)
    backend.poll_interval = poll
    backend.health_policy = kdp.HealthPolicy(successes=1, flaps=None)
    return backend


async def test_registers_are_polled_and_boards_are_told(node: SysfsTree, kubelet: SimulatedKubelet) -> None:
    register = f"{BOARD}/fpga_region/region0/dfl-port.0/errors/errors"
    async with kubelet.serving(_backend(node, 0.05)):
        node.write(register, "0x1")
        await kubelet.until(allocatable={TWO_PORTS: 1, ONE_PORT: 1})
        node.write(register, "0x0")
        await kubelet.until(allocatable={TWO_PORTS: 2, ONE_PORT: 1})


async def test_a_board_that_is_pulled_is_told_by_the_kernel(node: SysfsTree, kubelet: SimulatedKubelet) -> None:
    async with kubelet.serving(_backend(node, 3600)):
        region = node.host.resolve(f"{BOARD}/fpga_region/region0")
        node.vanish(BOARD)
        node.uevent("remove", region, SUBSYSTEM="fpga_region")
        await kubelet.until(allocatable={TWO_PORTS: 0, ONE_PORT: 1})
        node.bring_back(BOARD)
        node.uevent("add", region, SUBSYSTEM="fpga_region")
        await kubelet.until(allocatable={TWO_PORTS: 2, ONE_PORT: 1})
