"""Trees that real nodes have and no recording shows: each was once taken for something else, or ended the scan."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import kdp
from kdp.testing import SysfsTree
from kdp_fpga import Fpga
from kdp_fpga.recorded import NODE

FIRST, SECOND = "0000:41:00.0", "0000:81:00.0"
ENGINE = "/sys/class/fpga_region/region0/dfl-fme.0"
PORT = "/sys/class/fpga_region/region0/dfl-port.0"
SHELL, TWINS = "xilinx_u200_gen3x16_xdma_base_2", "xilinx_u30_gen3x4_base_2"

NodeFrom = Callable[[Path], SysfsTree]


@pytest.fixture
def node(node_from: NodeFrom) -> SysfsTree:
    return node_from(NODE)


def _card(tree: SysfsTree, slot: str, shell: str = SHELL, serial: str = "S1") -> str:
    """Make a user function with its render node."""
    user = tree.pci_function(f"{slot}.1", vendor=0x10EE, device=0x5001, numa_node=0)
    render = 128 + len(tree.host.glob("/dev/dri/renderD*"))
    files = {"user_pf": "", "rom.u/VBNV": shell, "rom.u/timestamp": "1", "xmc.u/serial_num": serial}
    for name, value in {**files, "xmc.u.256.0/serial_num": serial, f"drm/renderD{render}/dev": f"226:{render}"}.items():
        tree.write(f"{user}/{name}", value)
    tree.stand_in(f"/dev/dri/renderD{render}", major=226, minor=render)
    return user


@pytest.mark.parametrize(("name", "says"), [("temp1_input", "9" * 5000), ("temp1_crit", "-99999999")])
def test_a_temperature_that_is_none_ended_the_scan(node: SysfsTree, name: str, says: str) -> None:
    before = Fpga(node.host).discover()
    node.write(f"{ENGINE}/hwmon/hwmon0/{name}", says)
    assert Fpga(node.host).discover() == before
    assert Fpga(node.host, max_temperature=90).discover() == before


def test_a_limit_below_zero_made_every_board_too_hot(node: SysfsTree) -> None:
    node.write(f"{ENGINE}/hwmon/hwmon0/temp1_crit", "-1")
    assert all(device.health.is_healthy for device in Fpga(node.host).discover())


def test_a_board_may_be_colder_than_ice(node: SysfsTree) -> None:
    node.write(f"{ENGINE}/hwmon/hwmon0/temp1_input", "-5000")
    assert all(device.health.is_healthy for device in Fpga(node.host).discover())


@pytest.mark.parametrize("says", ["9" * 65, "\x1b[31mred"])
def test_what_no_selector_can_hold_is_no_attribute(node: SysfsTree, says: str) -> None:
    """The whole pool could not be published for one attribute that is for people."""
    node.write(f"{ENGINE}/bitstream_id", says)
    first, *_ = Fpga(node.host).discover()
    assert "bitstream" not in first.attributes
    assert first.health.is_healthy


def test_a_long_shell_is_a_resource_and_no_attribute(sysfs_tree: SysfsTree) -> None:
    _card(sysfs_tree, "0000:3b:00", "x" * 80, "s" * 65)
    (device,) = Fpga(sysfs_tree.host).discover()
    assert (device.health.is_healthy, dict(device.attributes)) == (True, {})


def test_a_memory_node_that_is_none_is_unknown(node: SysfsTree) -> None:
    """The board was left out."""
    name = "numa_node"
    before = Fpga(node.host).discover()
    node.write(f"/sys/bus/pci/devices/{FIRST}/{name}", "255")
    now = Fpga(node.host).discover()
    assert [device.id for device in now] == [device.id for device in before]
    assert all(device.health.is_healthy for device in now)
    assert now[2] == before[2]


def test_a_node_with_a_nul_in_its_name_leaves_out_that_port_only(
    node: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    before = Fpga(node.host).discover()
    node.write(f"{PORT}/uevent", "DEVNAME=dfl\0port.0")
    with caplog.at_level(logging.WARNING):
        assert Fpga(node.host).discover() == before[1:]
    assert "NUL" in caplog.text


def test_a_card_without_a_user_function_was_not_spoken_of(
    sysfs_tree: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    _card(sysfs_tree, "0000:3c:00")
    for slot, instance in (("0000:3b:00", 7), ("0000:3c:00", 8)):
        manager = sysfs_tree.pci_function(f"{slot}.0", vendor=0x10EE, device=0x5000)
        sysfs_tree.write(f"{manager}/mgmt_pf", "")
        sysfs_tree.write(f"{manager}/instance", instance)
    backend = Fpga(sysfs_tree.host)
    assert [device.id for device in backend.discover()] == ["0000:3c:00.1"]
    backend.discover()
    assert caplog.messages == [
        (
            "left out: card 0000:3b:00.0: its management function is there and no user function: is xocl loaded and "
            "bound to it?"
        )
    ]


def test_half_a_card_was_healthy(sysfs_tree: SysfsTree, caplog: pytest.LogCaptureFixture) -> None:
    _card(sysfs_tree, "0000:3b:00", TWINS)
    other = _card(sysfs_tree, "0000:3c:00", TWINS)
    backend = Fpga(sysfs_tree.host)
    before = backend.discover()
    assert [(device.id, device.health.is_healthy) for device in before] == [("card-S1", True)]

    sysfs_tree.vanish(other)
    (device,) = backend.discover()
    assert str(device.health) == "Unhealthy (0000:3c:00.1: is gone, and the card has two functions)"
    assert caplog.messages == []
    # One that starts now, perhaps in a guest that was given one function, cannot know; but it tells.
    assert [device.id for device in Fpga(sysfs_tree.host).discover()] == ["card-S1"]
    assert caplog.messages == ["left out: the second function of card-S1: only 0000:3b:00.1 is there"]

    sysfs_tree.bring_back(other)
    assert backend.discover() == before


def test_two_cards_with_one_serial_number_were_one_healthy_card(sysfs_tree: SysfsTree) -> None:
    for slot in ("0000:3b:00", "0000:3c:00", "0000:5b:00", "0000:5c:00"):
        _card(sysfs_tree, slot, TWINS)
    (device,) = Fpga(sysfs_tree.host).discover()
    assert str(device.health) == (
        "Unhealthy (4 functions say the serial number S1, and a card has 2: kdp cannot tell which functions are one "
        "card)"
    )
    assert len(Fpga(sysfs_tree.host, card_unit="function").discover()) == 4


def test_cards_of_other_kinds_may_say_one_serial_number(sysfs_tree: SysfsTree) -> None:
    for slot in ("0000:3b:00", "0000:3c:00", "10000:e1:00"):
        _card(sysfs_tree, slot)
    devices = Fpga(sysfs_tree.host).discover()
    assert [device.id for device in devices] == ["0000:3b:00.1", "0000:3c:00.1", "10000:e1:00.1"]
    assert all(device.health.is_healthy for device in devices)


@pytest.mark.parametrize(("name", "says"), [("VBNV", b"\xff" * 64), ("timestamp", b"a\0b\n")], ids=["ones", "NUL"])
def test_a_shell_that_is_no_text_was_a_resource_of_its_own(
    sysfs_tree: SysfsTree, caplog: pytest.LogCaptureFixture, name: str, says: bytes
) -> None:
    user = _card(sysfs_tree, "0000:3b:00")
    _card(sysfs_tree, "0000:3c:00")
    backend = Fpga(sysfs_tree.host)
    before = backend.discover()
    sysfs_tree.path(f"{user}/rom.u/{name}").write_bytes(says)
    first, second = backend.discover()
    assert (first.id, first.resource, second) == (before[0].id, before[0].resource, before[1])
    assert f"{user}/rom.u/{name} says " in str(first.health)
    assert str(first.health).endswith("; expected printable ASCII)")
    assert caplog.messages == []

    assert Fpga(sysfs_tree.host).discover() == [second]
    (message,) = caplog.messages
    assert message.startswith(f"left out: card 0000:3b:00.1: {user}/rom.u/{name} says ")


def test_a_card_whose_timestamp_was_never_read_was_a_resource_of_its_own(sysfs_tree: SysfsTree) -> None:
    user = _card(sysfs_tree, "0000:3b:00")
    sysfs_tree.fail(f"{user}/rom.u/timestamp", errno.EINVAL)
    backend = Fpga(sysfs_tree.host)
    assert backend.discover() == []
    sysfs_tree.heal(f"{user}/rom.u/timestamp")
    assert [device.resource for device in backend.discover()] == [f"amd.com/{SHELL}-1"]


def test_a_serial_number_that_is_no_text_made_another_card(sysfs_tree: SysfsTree) -> None:
    user = _card(sysfs_tree, "0000:3b:00", TWINS)
    _card(sysfs_tree, "0000:3c:00", TWINS)
    backend = Fpga(sysfs_tree.host)
    before = backend.discover()
    assert [device.id for device in before] == ["card-S1"]
    for place in ("xmc.u", "xmc.u.256.0"):
        sysfs_tree.path(f"{user}/{place}/serial_num").write_bytes(b"\xff" * 32)
    assert backend.discover() == before


@pytest.mark.parametrize(("vendor", "device"), [(0x8086, 0x09C4), (0x10EE, 0x5000)])
def test_a_board_without_a_driver_was_a_node_without_boards(sysfs_tree: SysfsTree, vendor: int, device: int) -> None:
    """The plugin was ready with no resource, and an update of the DaemonSet went on."""
    sysfs_tree.pci_function("0000:3b:00.0", vendor=vendor, device=device)
    with pytest.raises(kdp.NotReady, match=f"no driver is bound to 0000:3b:00.0 .{vendor:04x}:{device:04x}.; load"):
        Fpga(sysfs_tree.host).discover()
    sysfs_tree.pci_function("0000:5e:00.0", vendor=vendor, device=device, driver="vfio-pci")
    assert not Fpga(sysfs_tree.host).discover()
