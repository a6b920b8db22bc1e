"""AMD cards that are divided: two in the mode CPX with two partitions each, and the nodes that are no partition now."""

from __future__ import annotations

from pathlib import Path

from kdp.testing import SysfsTree
from kdp_example_generic import Generic

CONFIG = Path(__file__).parents[1] / "configs/amd-gpu.yaml"
FIRST, SECOND = "0000:05:00.0", "0001:65:00.0"


def _drm(tree: SysfsTree, directory: str, number: int) -> None:
    for kind, minor in (("card", number), ("renderD", 128 + number)):
        tree.write(f"{directory}/drm/{kind}{minor}/dev", f"226:{minor}")
        tree.stand_in(f"/dev/dri/{kind}{minor}", major=226, minor=minor)


def _divided(tree: SysfsTree) -> list[str]:
    """Two cards with two partitions each; the driver has made another platform device of each card."""
    tree.stand_in("/dev/kfd", major=510, minor=0)
    cards = [
        tree.pci_function(address, vendor=0x1002, device=0x74A1, driver="amdgpu", numa_node=numa)
        for numa, address in enumerate((FIRST, SECOND))
    ]
    for number, card in enumerate(cards):
        _drm(tree, card, 10 * number)
        for partition in (1, 2):
            _drm(tree, f"/sys/devices/platform/amdgpu_xcp_{2 * number + partition}", 10 * number + partition)
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    tree.write(f"{nodes}/0/properties", "cpu_cores_count 64\ndrm_render_minor 0")
    for node, (render, domain, bus, partition) in enumerate(
        [(128, 0, 0x05, 0), (129, 0, 0x05, 1), (138, 1, 0x65, 0), (139, 1, 0x65, 1)], start=1
    ):
        location = bus << 8 | partition << 28
        tree.write(f"{nodes}/{node}/properties", f"location_id {location}\ndomain {domain}\ndrm_render_minor {render}")
    return cards


def test_of_a_divided_card_only_the_first_partition_was_a_device(sysfs_tree: SysfsTree) -> None:
    first, second = _divided(sysfs_tree)

    devices = Generic(CONFIG, sysfs_tree.host).discover()

    assert [(device.id, device.unit, device.numa_nodes, device.identity) for device in devices] == [
        (f"gpu-{FIRST}", FIRST, (0,), first),
        (f"gpu-{SECOND}", SECOND, (1,), second),
        ("gpu-xcp1", FIRST, (0,), first),
        ("gpu-xcp3", SECOND, (1,), second),
    ]
    assert all(device.health.is_healthy for device in devices)
    assert [node.host_path for node in devices[2].edits.device_nodes] == [
        "/dev/dri/renderD129",
        "/dev/dri/card1",
        "/dev/kfd",
    ]


def test_without_a_topology_the_partitions_are_those_of_the_only_card(sysfs_tree: SysfsTree) -> None:
    _divided(sysfs_tree)
    sysfs_tree.remove("/sys/class/kfd/kfd/topology")
    sysfs_tree.vanish(f"/sys/bus/pci/devices/{SECOND}")

    devices = Generic(CONFIG, sysfs_tree.host).discover()

    assert {device.unit for device in devices} == {FIRST}
    assert [device.id for device in devices] == [f"gpu-{FIRST}", *(f"gpu-xcp{n}" for n in (1, 2, 3, 4))]
