from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import kdp
from kdp_example_generic.usb import scan

if TYPE_CHECKING:
    from examples.generic.tests.conftest import Tree

    from kdp_example_generic import Generic

CONFIG = """
resources:
  - name: example.com/stick
    groups:
      - {member}
"""


def plug_in(tree: Tree, port: str, numbers: str, node: str, serial: str | None = None, numa: int | None = None) -> None:
    """Make a USB device as the kernel shows it."""
    card = "/sys/devices/pci0000:00/0000:00:14.0"
    place = f"{card}/usb1/{port}"
    vendor, _, product = numbers.partition(":")
    bus, _, number = node.partition("/")
    for name, text in {"idVendor": vendor, "idProduct": product, "busnum": bus, "devnum": number}.items():
        tree.file(f"{place}/{name}", f"{text}\n")
    if serial is not None:
        tree.file(f"{place}/serial", f"{serial}\n")
    if numa is not None:
        tree.file(f"{card}/numa_node", f"{numa}\n")
    tree.directory(f"{place}/{port}:1.0")
    tree.link(f"/sys/bus/usb/devices/{port}", f"../../../devices/pci0000:00/0000:00:14.0/usb1/{port}")
    tree.link(f"/sys/bus/usb/devices/{port}:1.0", f"../../../devices/pci0000:00/0000:00:14.0/usb1/{port}/{port}:1.0")
    tree.node(f"/dev/bus/usb/{int(bus):03}/{int(number):03}", number=(189, int(number) - 1))


def test_devices_are_told_by_port_and_interfaces_are_none(tree: Tree) -> None:
    plug_in(tree, "1-10", "1A86:7523", "1/7")
    plug_in(tree, "1-2", "0403:6001", "1/12", serial="A50285BI")

    first, second = scan(tree.host)

    assert (first.port, first.vendor, first.product, first.serial) == ("1-2", "0403", "6001", "A50285BI")
    assert first.node == "/dev/bus/usb/001/012"
    assert (second.port, second.vendor, second.serial, second.node) == ("1-10", "1a86", "", "/dev/bus/usb/001/007")


def test_a_device_that_is_pulled_out_while_we_read_is_left_out(tree: Tree) -> None:
    plug_in(tree, "1-1", "1a86:7523", "1/7")
    tree.remove("/sys/devices/pci0000:00/0000:00:14.0/usb1/1-1/devnum")

    assert scan(tree.host) == []


def test_each_stick_of_a_kind_is_a_device_of_its_own(tree: Tree, backend: Callable[[str], Generic]) -> None:
    plug_in(tree, "1-1", "1a86:7523", "1/7", numa=1)
    plug_in(tree, "1-2", "1a86:7523", "1/8")
    plug_in(tree, "1-3", "1a86:0001", "1/9")

    devices = backend(CONFIG.format(member="{usb: [{vendor: 1A86, product: '7523'}]}")).discover()

    assert [device.id for device in devices] == ["stick-usb-1-1", "stick-usb-1-2"]
    assert [device.edits.device_nodes[0].host_path for device in devices] == [
        "/dev/bus/usb/001/007",
        "/dev/bus/usb/001/008",
    ]
    assert [device.numa_nodes for device in devices] == [(1,), (1,)]
    assert all(device.health.is_healthy for device in devices)


def test_a_serial_number_names_one_stick_wherever_it_is(tree: Tree, backend: Callable[[str], Generic]) -> None:
    plug_in(tree, "1-1", "0403:6001", "1/7", serial="AAA")
    plug_in(tree, "1-2", "0403:6001", "1/8", serial="BBB")

    (device,) = backend(
        CONFIG.format(member="{id: '{vendor}-{serial}', usb: [{vendor: 0403, serial: BBB, mountPath: '/dev/stick'}]}")
    ).discover()

    assert device.id == "0403-BBB"
    assert device.edits.device_nodes[0].container_path == "/dev/stick"


def test_two_devices_of_a_kind_without_serial_numbers_could_not_be_told_apart(
    tree: Tree, backend: Callable[[str], Generic]
) -> None:
    plug_in(tree, "1-1.2", "046d:c31c", "1/5")
    plug_in(tree, "1-1", "046d:c31c", "1/4")
    resources = ", ".join(
        f"{{name: a.io/{name}, groups: [{{usb: [{{vendor: 046d, port: {port}}}]}}]}}"
        for name, port in (("left", "1-1"), ("right", "1-1.2"), ("none", "2-1"))
    )

    devices = backend(f"resources: [{resources}]").discover()

    assert {str(device.resource): device.edits.device_nodes[0].host_path for device in devices} == {
        "a.io/left": "/dev/bus/usb/001/004",
        "a.io/right": "/dev/bus/usb/001/005",
    }


def test_a_port_that_no_device_can_have_is_refused(backend: Callable[[str], Generic]) -> None:
    with pytest.raises(kdp.ConfigurationError, match="must be a port as the directories of /sys/bus/usb/devices"):
        backend(CONFIG.format(member="{usb: [{vendor: 046d, port: usb1}]}"))
