"""Runs in a guest: examples/fpga on two boards under the kernel's own drivers, with kdp and the simulated kubelet.

The tests work on the same two boards, one after the other; each leaves them as it found them. Python is slow in a
guest: the figures are upper limits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from tests.hardware.dfl_board import DflBoard

import kdp
import kdp.hardware
from kdp.testing import SimulatedKubelet
from kdp_fpga import Fpga

Figure = Callable[[str, float, str], None]

INTERFACE = "9926ab6d-6c92-5a68-aabc-a7d84c545738"
FIRST, SECOND = "d8424dc4-a4a3-c413-f89e-433683f9040b", "f7df405c-bd7a-cf72-22f1-44b0b93acd18"
TWO_PORTS = "fpga.intel.com/af-992.d84.mSarbWySWmiqvKfYTFRXONhCTcSko8QT-J5DNoP5BAs"
ONE_PORT = "fpga.intel.com/af-992.f7d.mSarbWySWmiqvKfYTFRXOPffQFy9es9yIvFEsLk6zRg"
ALL = {TWO_PORTS: 2, ONE_PORT: 1}
POLL = 1.0
DEADLINE = 120.0


@pytest.fixture(scope="module")
def boards() -> tuple[DflBoard, DflBoard]:
    first, second = (DflBoard(address) for address in DflBoard.candidates())
    _first(first)
    second.make(accelerator=SECOND, interface=INTERFACE)
    return first, second


def _first(board: DflBoard) -> None:
    board.make(accelerator=FIRST, interface=INTERFACE, ports=2)


def _backend(poll: float = POLL) -> Fpga:
    backend = Fpga(kdp.hardware.Host())
    backend.poll_interval = poll
    backend.health_policy = kdp.HealthPolicy(successes=1, flaps=None)
    return backend


def _snapshot(name: str) -> None:
    """Record the files as they are now: what examples/fpga/tests/data has was made so."""
    subprocess.run(
        [sys.executable, "-m", "kdp", "snapshot", "fpga", "-o", f"/out/{name}.tar.gz"], check=True, timeout=DEADLINE
    )


def test_the_kernel_shows_both_boards_each_on_its_node(boards: tuple[DflBoard, DflBoard]) -> None:
    found = {device.id: device for device in Fpga(kdp.hardware.Host()).discover()}

    first, second = (board.address for board in boards)
    assert {name: (device.resource, device.numa_nodes) for name, device in found.items()} == {
        f"{first}-port0": (TWO_PORTS, (0,)),
        f"{first}-port1": (TWO_PORTS, (0,)),
        f"{second}-port0": (ONE_PORT, (1,)),
    }
    assert all(device.health.is_healthy for device in found.values())
    for device in found.values():
        (node,) = device.edits.device_nodes
        assert kdp.hardware.Host().device_type(node.host_path) == "char"
        os.close(os.open(node.host_path, os.O_RDWR))


async def test_a_fault_of_the_hardware_reaches_the_kubelet_and_its_end_too(
    boards: tuple[DflBoard, DflBoard], kubelet: SimulatedKubelet, figure: Figure
) -> None:
    board = boards[0]
    cases: list[tuple[str, int, Callable[[], None], Callable[[], None]]] = [
        ("an engine's error register", 0, lambda: board.engine_errors(3), lambda: board.engine_errors(0)),
        ("a port's error register", 1, lambda: board.port_errors(0, 1), lambda: board.port_errors(0, 0)),
        ("a temperature above the critical one", 0, lambda: board.temperature(96), lambda: board.temperature(60)),
    ]
    async with kubelet.serving(_backend(), timeout=DEADLINE):
        await kubelet.until(allocatable=ALL, timeout=DEADLINE)
        for what, left, harm, heal in cases:
            harm()
            began = time.monotonic()
            await kubelet.until(allocatable={TWO_PORTS: left, ONE_PORT: 1}, timeout=DEADLINE)
            figure(f"{what}, poll {POLL:g} s: set to Unhealthy", time.monotonic() - began, "s")
            reasons = [str(device.health) for device in Fpga(kdp.hardware.Host()).discover()]
            assert sum(reason != "Healthy" for reason in reasons) == 2 - left
            print(what, reasons)
            if left:
                _snapshot("port-errors")
            heal()
            began = time.monotonic()
            await kubelet.until(allocatable=ALL, timeout=DEADLINE)
            figure(f"{what}, poll {POLL:g} s: cleared to Healthy", time.monotonic() - began, "s")
    board.temperature(45)


async def test_an_accelerator_that_stops_to_answer_keeps_its_resource(
    boards: tuple[DflBoard, DflBoard], kubelet: SimulatedKubelet
) -> None:
    board = boards[0]
    async with kubelet.serving(_backend(), timeout=DEADLINE):
        await kubelet.until(allocatable=ALL, timeout=DEADLINE)
        board.accelerator(0, (1 << 128) - 1)
        await kubelet.until(allocatable={TWO_PORTS: 1, ONE_PORT: 1}, timeout=DEADLINE)
        board.accelerator(0, int(FIRST.replace("-", ""), 16))
        await kubelet.until(allocatable=ALL, timeout=DEADLINE)


@pytest.mark.parametrize("part", ["dfl-fme", "dfl-port"])
async def test_a_board_half_way_out_keeps_its_resource(
    boards: tuple[DflBoard, DflBoard], kubelet: SimulatedKubelet, part: str
) -> None:
    """The kernel takes a board away part by part; what is seen in between must not become another resource."""
    board = boards[0]
    left = {TWO_PORTS: 0 if part == "dfl-fme" else 1, ONE_PORT: 1}
    async with kubelet.serving(_backend(), timeout=DEADLINE):
        await kubelet.until(allocatable=ALL, timeout=DEADLINE)
        board.take_driver(f"{part}.0")
        await kubelet.until(allocatable=left, timeout=DEADLINE)
        _snapshot(f"half-removed-{part}")
        board.give_driver(f"{part}.0")
        await kubelet.until(allocatable=ALL, timeout=DEADLINE)
        assert kubelet.capacity() == ALL


async def test_a_board_that_is_pulled_and_put_back_is_told_by_the_kernel(
    boards: tuple[DflBoard, DflBoard], kubelet: SimulatedKubelet, figure: Figure
) -> None:
    board, other = boards
    async with kubelet.serving(_backend(poll=3600), timeout=DEADLINE):
        await kubelet.until(allocatable=ALL, timeout=DEADLINE)
        began = time.monotonic()
        board.remove()
        gone = time.monotonic()
        await kubelet.until(allocatable={TWO_PORTS: 0, ONE_PORT: 1}, timeout=DEADLINE)
        figure("unplug, poll 3600 s: from the order", time.monotonic() - began, "s")
        figure("unplug, poll 3600 s: from the driver's end", time.monotonic() - gone, "s")
        # The second board's numbers shift to the first one's places when its driver binds anew; its id does not.
        other.unbind()
        await kubelet.until(allocatable={TWO_PORTS: 0, ONE_PORT: 0}, timeout=DEADLINE)
        other.bind()
        await kubelet.until(allocatable={TWO_PORTS: 0, ONE_PORT: 1}, timeout=DEADLINE)
        (device,) = Fpga(kdp.hardware.Host()).discover()
        assert (device.id, device.edits.device_nodes[0].host_path) == (f"{other.address}-port0", "/dev/dfl-port.0")

        DflBoard.rescan()
        _first(board)
        began = time.monotonic()
        await kubelet.until(allocatable=ALL, timeout=DEADLINE)
        figure("plugged in, poll 3600 s: from the driver's begin", time.monotonic() - began, "s")
        # Not even for a moment was there another resource: the ports come before the regions that name the interface.
        assert kubelet.capacity().keys() == ALL.keys()
