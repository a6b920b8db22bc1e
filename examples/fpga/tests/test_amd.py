"""AMD (Xilinx) cards, on trees made by hand with the names of the XRT drivers; no card, no driver."""

from __future__ import annotations

import errno
import logging

import pytest

import kdp
from kdp.testing import SysfsTree
from kdp_fpga import Fpga

SHELL = "xilinx_u200_gen3x16_xdma_base_2"
TWINS = "xilinx_u30_gen3x4_base_2"


def card(
    node: SysfsTree,
    slot: str,
    shell: str,
    serial: str | None,
    *,
    numa_node: int = 0,
    function: int = 1,
    instance: int = 7,
) -> str:
    """Make a card: the management function is number 0, as with XRT since 2018.3, the user function another."""
    manager = node.pci_function(f"{slot}.0", vendor=0x10EE, device=0x5000, numa_node=numa_node)
    node.write(f"{manager}/mgmt_pf", "")
    node.write(f"{manager}/instance", instance)
    user = node.pci_function(f"{slot}.{function}", vendor=0x10EE, device=0x5001, numa_node=numa_node)
    node.write(f"{user}/user_pf", "")
    node.write(f"{user}/rom.u.256.0/VBNV", shell)
    node.write(f"{user}/rom.u.256.0/timestamp", "1601910525")
    if serial is not None:
        node.write(f"{user}/xmc.u.256.0/serial_num", serial)
    render = 128 + len(node.host.glob("/dev/dri/renderD*"))
    node.write(f"{user}/drm/renderD{render}/dev", f"226:{render}")
    node.stand_in(f"/dev/dri/renderD{render}", major=226, minor=render)
    return user


def _nodes(device: kdp.Device) -> list[str]:
    return [node.host_path for node in device.edits.device_nodes]


def test_a_user_function_is_a_device_of_the_resource_of_its_shell(sysfs_tree: SysfsTree) -> None:
    card(sysfs_tree, "0000:3b:00", SHELL, "213304001A", numa_node=1)
    sysfs_tree.pci_function("0000:01:00.0", vendor=0x8086, device=1)

    (device,) = Fpga(sysfs_tree.host).discover()

    assert (device.id, device.resource) == ("0000:3b:00.1", f"amd.com/{SHELL}-1601910525")
    assert (device.numa_nodes, device.health.is_healthy, _nodes(device)) == ((1,), True, ["/dev/dri/renderD128"])


def test_the_management_function_is_given_on_request(sysfs_tree: SysfsTree) -> None:
    user = card(sysfs_tree, "0000:3b:00", SHELL, "213304001A")
    sysfs_tree.write(f"{user}/dma.qdma.u.256.0/uevent", "")

    (device,) = Fpga(sysfs_tree.host, management=True).discover()

    # 0x3b00 + function 1, as the driver numbers it.
    assert _nodes(device) == ["/dev/dri/renderD128", "/dev/xfpga/dma.qdma.u15105.0", "/dev/xclmgmt7"]


def test_functions_are_told_by_their_files_and_not_by_their_numbers(sysfs_tree: SysfsTree) -> None:
    """As in a guest that was given the user function alone, and as with older drivers: it is number 0."""
    user = sysfs_tree.pci_function("0000:00:05.0", vendor=0x1D0F, device=0xF010)
    sysfs_tree.write(f"{user}/user_pf", "")
    sysfs_tree.write(f"{user}/rom/VBNV", "xilinx_aws-vu9p-f1_shell-v04261818_201920_2")
    sysfs_tree.write(f"{user}/rom/timestamp", "0")
    sysfs_tree.write(f"{user}/drm/renderD128/dev", "226:128")

    (device,) = Fpga(sysfs_tree.host, management=True).discover()

    assert device.resource == "amd.com/xilinx_aws-vu9p-f1_shell-v04261818_201920_2-0"
    assert (device.unit, _nodes(device)) == ("0000:00:05.0", ["/dev/dri/renderD128"])
    assert device.identity == user


def test_functions_with_one_serial_number_are_one_card(sysfs_tree: SysfsTree) -> None:
    card(sysfs_tree, "0000:3b:00", TWINS, "S1")
    card(sysfs_tree, "0000:3c:00", TWINS, "S1")
    card(sysfs_tree, "0000:3d:00", TWINS, "S2")

    first, second = Fpga(sysfs_tree.host).discover()

    assert (first.id, first.resource, _nodes(first)) == (
        "card-S1",
        "amd.com/ama_u30",
        ["/dev/dri/renderD128", "/dev/dri/renderD129"],
    )
    assert (second.id, second.identity) == ("card-S2", "card-S2")
    by_function = Fpga(sysfs_tree.host, card_unit="function", shell_names="exact").discover()
    assert [(device.id, device.resource, device.unit) for device in by_function] == [
        ("0000:3b:00.1", f"amd.com/{TWINS}-1601910525", "card-S1"),
        ("0000:3c:00.1", f"amd.com/{TWINS}-1601910525", "card-S1"),
        ("0000:3d:00.1", f"amd.com/{TWINS}-1601910525", "card-S2"),
    ]


def test_a_fault_of_one_function_is_one_of_the_card(sysfs_tree: SysfsTree) -> None:
    card(sysfs_tree, "0000:3b:00", TWINS, "S1")
    user = card(sysfs_tree, "0000:3c:00", TWINS, "S1")
    sysfs_tree.write(f"{user}/dev_offline", 1)

    (device,) = Fpga(sysfs_tree.host).discover()

    assert str(device.health) == "Unhealthy (0000:3c:00.1: its driver has taken it offline, as during a reset)"


def test_twins_without_a_serial_number_are_not_given_out(sysfs_tree: SysfsTree) -> None:
    user = card(sysfs_tree, "0000:3b:00", TWINS, None)

    (device,) = Fpga(sysfs_tree.host).discover()

    assert str(device.health) == (
        f"Unhealthy ({user}/xmc.u.*/serial_num is not there: kdp cannot tell which functions are one card)"
    )


def test_a_card_under_reset_keeps_its_name(sysfs_tree: SysfsTree) -> None:
    """As Xilinx/FPGA_as_a_Service#17: a reset in one pod took every card of the node away."""
    user = card(sysfs_tree, "0000:3b:00", SHELL, "S1")
    card(sysfs_tree, "0000:3c:00", SHELL, "S2")
    backend = Fpga(sysfs_tree.host)
    before = backend.discover()
    sysfs_tree.vanish(f"{user}/rom.u.256.0")
    sysfs_tree.vanish(f"{user}/drm/renderD128")

    first, second = backend.discover()

    assert (first.id, first.resource, second) == (before[0].id, before[0].resource, before[1])
    assert "its driver names no render node" in str(first.health)
    sysfs_tree.bring_back(f"{user}/rom.u.256.0")
    sysfs_tree.bring_back(f"{user}/drm/renderD128")
    assert backend.discover() == before


def test_a_card_without_a_shell_is_left_out_and_told_once(
    sysfs_tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    user = card(sysfs_tree, "0000:3b:00", SHELL, "S1")
    sysfs_tree.fail(f"{user}/rom.u.256.0/VBNV", errno.EINVAL)
    backend = Fpga(sysfs_tree.host)

    with caplog.at_level(logging.WARNING):
        assert backend.discover() == backend.discover() == []

    (record,) = caplog.records
    assert record.getMessage() == (
        f"left out: card 0000:3b:00.1: {user}/rom.u.256.0/VBNV cannot be read: Invalid argument"
    )


def test_a_serial_number_with_odd_signs_makes_an_id_all_the_same(sysfs_tree: SysfsTree) -> None:
    card(sysfs_tree, "0000:3b:00", TWINS, "S 1/#" * 30)
    card(sysfs_tree, "0000:3c:00", TWINS, "S 1/#" * 30)
    card(sysfs_tree, "0000:3d:00", TWINS, "S 1/#" * 31)

    assert [len(device.edits.device_nodes) for device in Fpga(sysfs_tree.host).discover()] == [2, 1]


def test_a_card_measures_its_sensors(sysfs_tree: SysfsTree) -> None:
    user = card(sysfs_tree, "0000:3b:00", SHELL, "S1")
    sysfs_tree.write(f"{user}/xmc.u.256.0/xmc_fpga_temp", 47)
    sysfs_tree.write(f"{user}/xmc.u.256.0/xmc_power", 23500000)
    card(sysfs_tree, "0000:3c:00", SHELL, "S2")
    backend = Fpga(sysfs_tree.host)
    first, second = backend.discover()
    assert backend.measure() == {first.id: {"fpga_temperature": 47, "fpga_power": 23.5}, second.id: {}}
