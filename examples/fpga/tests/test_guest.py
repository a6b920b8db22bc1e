"""A guest that was given a virtual function: its port is there, and the management engine stays with the host."""

from __future__ import annotations

import pytest

from kdp.testing import SysfsTree
from kdp_fpga import Fpga
from kdp_fpga.recorded import NODE
from kdp_testkit.pytest_plugin import NodeFrom

BARE = "fpga.intel.com/af-d8424dc4a4a3c413f89e433683f9040b"


def _guest(tree: SysfsTree, device: int = 0x09C5, region: str = "fpga_region/region0", name: str = "dfl") -> str:
    """Make a function with one port and no engine, as a guest has it that was given a virtual function."""
    top = f"{tree.pci_function('0000:00:05.0', vendor=0x8086, device=device)}/{region}"
    port = f"{top}/{name}-port.0"
    tree.write(f"{port}/id", 1)
    tree.write(f"{port}/afu_id", BARE.rpartition("-")[2])
    tree.write(f"{port}/errors/errors", "0x0")
    tree.write(f"{port}/uevent", f"DEVNAME={name}-port.0")
    tree.link(f"/sys/class/{region}", top)
    return port


@pytest.mark.parametrize(
    ("device", "top", "name"),
    [(0xBCBF, "fpga_region/region0", "dfl"), (0x0B2C, "fpga/intel-fpga-dev.0", "intel-fpga")],
    ids=["dfl", "opae"],
)
def test_a_virtual_function_in_a_guest_was_taken_for_a_board_on_its_way_out(
    sysfs_tree: SysfsTree, device: int, top: str, name: str
) -> None:
    running = Fpga(sysfs_tree.host)
    assert running.discover() == []
    _guest(sysfs_tree, device, top, name)
    for backend in (Fpga(sysfs_tree.host), running):
        (found,) = backend.discover()
        assert (found.id, found.unit, found.resource) == ("0000:00:05.0-port1", "0000:00:05.0", BARE)
        assert found.health.is_healthy
        assert [node.host_path for node in found.edits.device_nodes] == [f"/dev/{name}-port.0"]


def test_a_virtual_function_in_a_guest_cannot_be_programmed(
    sysfs_tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    _guest(sysfs_tree)
    assert Fpga(sysfs_tree.host, mode="region").discover() == []
    assert caplog.messages == [
        "left out: board 0000:00:05.0: it is a virtual function, which cannot be programmed; mode=af gives its port"
    ]


@pytest.mark.parametrize("device", [0xBCBD, 0x0B30])
def test_a_physical_function_without_its_engine_is_no_guests(
    sysfs_tree: SysfsTree, caplog: pytest.LogCaptureFixture, device: int
) -> None:
    _guest(sysfs_tree, device)
    assert Fpga(sysfs_tree.host).discover() == []
    assert caplog.messages == ["left out: port 0000:00:05.0-port1: the management engine of 0000:00:05.0 is gone"]


def test_a_virtual_function_that_lost_its_link_first_is_no_guests(node_from: NodeFrom) -> None:
    """The kernel removes the link to the physical function, then the function: pci_iov_remove_virtfn."""
    node = node_from(NODE)
    physical = "0000:41:00.0"
    port = _guest(node, region="fpga_region/region7")
    function = port.partition("/fpga_region/")[0]
    node.link(f"{function}/physfn", f"/sys/bus/pci/devices/{physical}")
    backend = Fpga(node.host)
    before = backend.discover()
    assert [device.unit for device in before if device.id.startswith("0000:00:05.0")] == [physical]
    node.path(f"{function}/physfn").unlink()
    assert backend.discover() == before
