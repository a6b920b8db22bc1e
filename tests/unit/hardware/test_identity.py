from __future__ import annotations

import pytest

from kdp.testing import SysfsTree

CONTROLLER = "/sys/devices/pci0000:00/0000:00:14.0"


def _adapter(tree: SysfsTree, port: str, tty: int, serial: str | None) -> None:
    device = f"{CONTROLLER}/usb1/{port}"
    facts: dict[str, str | int | None] = {
        "devnum": 7 + tty,
        "busnum": 1,
        "idVendor": "0403",
        "idProduct": "6001",
        "serial": serial,
    }
    for name, value in facts.items():
        if value is not None:
            tree.write(f"{device}/{name}", value)
    tree.link(f"/sys/bus/usb/devices/{port}", device)
    node = f"{device}/{port}:1.0/ttyUSB{tty}/tty/ttyUSB{tty}"
    tree.write(f"{node}/dev", f"188:{tty}")
    tree.link(f"/sys/dev/char/188:{tty}", node)
    tree.stand_in(f"/dev/ttyUSB{tty}", major=188, minor=tty)


def test_a_usb_device_is_its_serial_number_or_else_its_port(sysfs_tree: SysfsTree) -> None:
    _adapter(sysfs_tree, "1-1", 0, "A1")
    _adapter(sysfs_tree, "1-2", 1, None)
    host = sysfs_tree.host
    assert host.identity("/dev/ttyUSB0") == "USB 0403 serial A1"
    assert host.identity("/dev/ttyUSB1") == f"{CONTROLLER}/usb1/1-2"
    assert host.identity(f"{CONTROLLER}/usb1/1-1") == "USB 0403 serial A1"
    _adapter(sysfs_tree, "1-3", 2, "A1")  # cheap adapters of one kind have one serial number
    assert host.identity("/dev/ttyUSB0") == f"{CONTROLLER}/usb1/1-1"


def test_a_vfio_node_is_the_functions_of_its_group(sysfs_tree: SysfsTree) -> None:
    for number in range(2):
        sysfs_tree.pci_function(f"0000:3b:00.{number}", vendor=1, device=2, iommu_group=17)
    sysfs_tree.stand_in("/dev/vfio/17", major=240, minor=0)
    sysfs_tree.write("/sys/devices/virtual/vfio/17/dev", "240:0")
    sysfs_tree.link("/sys/dev/char/240:0", "/sys/devices/virtual/vfio/17")
    assert sysfs_tree.host.identity("/dev/vfio/17") == "0000:3b:00.0 0000:3b:00.1"


@pytest.mark.parametrize("above", ["/sys/devices/virtual/misc", "/sys/devices/platform/serial8250.3/tty"])
def test_what_has_only_numbers_has_no_identity(sysfs_tree: SysfsTree, above: str) -> None:
    sysfs_tree.write(f"{above}/x0/dev", "10:1")
    sysfs_tree.link("/sys/dev/char/10:1", f"{above}/x0")
    sysfs_tree.stand_in("/dev/x0", major=10, minor=1)
    assert sysfs_tree.host.identity("/dev/x0") == ""
    assert sysfs_tree.host.identity("/dev/none") == ""


def test_a_link_says_itself_what_stays(sysfs_tree: SysfsTree) -> None:
    function = sysfs_tree.pci_function("0000:3b:00.0", vendor=1, device=2)
    sysfs_tree.write(f"{function}/drm/renderD128/dev", "226:128")
    sysfs_tree.link("/sys/dev/char/226:128", f"{function}/drm/renderD128")
    sysfs_tree.stand_in("/dev/dri/renderD128", major=226, minor=128)
    sysfs_tree.link("/dev/dri/by-path/pci-0000:3b:00.0-render", "/dev/dri/renderD128")
    assert sysfs_tree.host.identity("/dev/dri/renderD128") == function
    assert sysfs_tree.host.identity("/dev/dri/by-path/pci-0000:3b:00.0-render") == ""
