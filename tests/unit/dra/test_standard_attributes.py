"""The attributes that all drivers share, found by themselves."""

from __future__ import annotations

import pytest

import kdp
from kdp.dra.standard_attributes import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, StandardAttributes, standard_attributes
from kdp.testing import SysfsTree

CARD = "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0"
FOUND = {PCI_BUS_ID: "0000:41:00.0", PCIE_ROOT: "pci0000:40", NUMA_NODE: 1}


@pytest.fixture
def gpu(sysfs_tree: SysfsTree) -> SysfsTree:
    sysfs_tree.write(f"{CARD}/numa_node", 1)
    sysfs_tree.link("/sys/bus/pci/devices/0000:41:00.0", f"../../..{CARD.removeprefix('/sys')}")
    _node(sysfs_tree, "/dev/dri/renderD128", 128, CARD)
    return sysfs_tree


def _node(tree: SysfsTree, path: str, minor: int, card: str) -> None:
    name = path.rpartition("/")[2]
    tree.stand_in(path, major=226, minor=minor)
    tree.write(f"{card}/drm/{name}/dev", f"226:{minor}")
    tree.link(f"/sys/dev/char/226:{minor}", f"../..{card.removeprefix('/sys')}/drm/{name}")


def _of_nodes(*paths: str) -> kdp.ContainerEdits:
    return kdp.ContainerEdits(device_nodes=[kdp.DeviceNode(host_path=path) for path in paths])


def test_a_device_node_leads_to_its_card(gpu: SysfsTree) -> None:
    device = kdp.Device(id="a", edits=_of_nodes("/dev/dri/renderD128"))
    assert standard_attributes(device, gpu.host) == FOUND


@pytest.mark.parametrize(
    "device",
    [kdp.Device(id="part-1", unit="0000:41:00.0"), kdp.Device(id="00000000:41:00.0")],
)
def test_an_id_or_unit_may_be_the_address(gpu: SysfsTree, device: kdp.Device) -> None:
    assert standard_attributes(device, gpu.host) == FOUND


def test_what_the_backend_declares_leads_the_way_and_stays_its_own(gpu: SysfsTree) -> None:
    device = kdp.Device(id="a", attributes={PCI_BUS_ID: "0000:41:00.0", NUMA_NODE: 0})
    assert standard_attributes(device, gpu.host) == {PCIE_ROOT: "pci0000:40"}


def test_what_is_no_hardware_has_none(gpu: SysfsTree) -> None:
    assert standard_attributes(kdp.Device(id="seat-1"), gpu.host) == {}
    assert standard_attributes(kdp.Device(id="a", edits=_of_nodes("/dev/no-such")), gpu.host) == {}


def test_an_unknown_memory_node_is_left_out_and_so_are_two(gpu: SysfsTree) -> None:
    gpu.write(f"{CARD}/numa_node", -1)
    assert NUMA_NODE not in standard_attributes(kdp.Device(id="0000:41:00.0"), gpu.host)
    assert NUMA_NODE not in standard_attributes(kdp.Device(id="0000:41:00.0", numa_nodes=(0, 1)), gpu.host)


def test_a_device_on_two_functions_has_no_bus_id_but_their_common_root(gpu: SysfsTree) -> None:
    other = "/sys/devices/pci0000:40/0000:40:02.0/0000:42:00.0"
    gpu.write(f"{other}/numa_node", 1)
    _node(gpu, "/dev/dri/renderD129", 129, other)
    device = kdp.Device(id="a", edits=_of_nodes("/dev/dri/renderD128", "/dev/dri/renderD129"))
    assert standard_attributes(device, gpu.host) == {PCIE_ROOT: "pci0000:40", NUMA_NODE: 1}
    far = "/sys/devices/pci0000:80/0000:80:02.0/0000:82:00.0"
    gpu.write(f"{far}/numa_node", 0)
    _node(gpu, "/dev/dri/renderD130", 130, far)
    device = kdp.Device(id="a", edits=_of_nodes("/dev/dri/renderD128", "/dev/dri/renderD130"))
    assert standard_attributes(device, gpu.host) == {}


def test_an_address_that_the_attribute_cannot_hold_is_left_out(sysfs_tree: SysfsTree) -> None:
    card = "/sys/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0"
    sysfs_tree.write(f"{card}/numa_node", 0)
    sysfs_tree.link("/sys/bus/pci/devices/10000:e0:06.0", f"../../..{card.removeprefix('/sys')}")
    assert standard_attributes(kdp.Device(id="10000:e0:06.0"), sysfs_tree.host) == {
        PCIE_ROOT: "pci0000:00",
        NUMA_NODE: 0,
    }


def test_a_device_is_looked_up_again_only_if_it_has_changed(gpu: SysfsTree) -> None:
    attributes = StandardAttributes(gpu.host)
    device = kdp.Device(id="a", edits=_of_nodes("/dev/dri/renderD128"))
    other = kdp.Device(id="b", edits=_of_nodes("/dev/dri/renderD128"))
    assert attributes.of([device, other]) == {"a": FOUND, "b": FOUND}
    gpu.write(f"{CARD}/numa_node", 0)
    sick = kdp.Device(id="a", edits=device.edits, health=kdp.Health.unhealthy("gone"))
    assert attributes.of([sick, other]) == {"a": {**FOUND, NUMA_NODE: 0}, "b": FOUND}
    assert attributes.of([device]) == {"a": {**FOUND, NUMA_NODE: 0}}
    assert attributes.of([other]) == {"b": {**FOUND, NUMA_NODE: 0}}, "it was gone meanwhile"
