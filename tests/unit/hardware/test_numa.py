from __future__ import annotations

import pytest

from kdp.hardware import Host
from kdp.testing import SysfsTree

CARD = "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0"


@pytest.fixture
def gpu(sysfs_tree: SysfsTree) -> SysfsTree:
    sysfs_tree.stand_in("/dev/dri/renderD128", major=226, minor=128)
    sysfs_tree.write(f"{CARD}/drm/renderD128/dev", "226:128")
    sysfs_tree.link("/sys/dev/char/226:128", f"../..{CARD.removeprefix('/sys')}/drm/renderD128")
    return sysfs_tree


def test_the_number_of_a_node_leads_to_its_card(gpu: SysfsTree) -> None:
    gpu.write(f"{CARD}/numa_node", 1)
    assert gpu.host.numa_nodes("/dev/dri/renderD128") == (1,)
    gpu.link("/dev/dri/by-path/pci-0000:41:00.0-render", "../renderD128")
    assert gpu.host.numa_nodes("/dev/dri/by-path/pci-0000:41:00.0-render") == (1,)


def test_node_zero_is_a_node_and_minus_one_is_none(gpu: SysfsTree) -> None:
    gpu.write(f"{CARD}/numa_node", 0)
    assert gpu.host.numa_nodes("/dev/dri/renderD128") == (0,)
    gpu.write(f"{CARD}/numa_node", -1)
    assert gpu.host.numa_nodes("/dev/dri/renderD128") == ()


def test_a_card_that_does_not_know_asks_its_bridge(gpu: SysfsTree) -> None:
    gpu.write(f"{CARD}/numa_node", -1)
    gpu.write("/sys/devices/pci0000:40/0000:40:01.0/numa_node", 2)
    assert gpu.host.numa_nodes("/dev/dri/renderD128") == (2,)


def test_nonsense_and_errors_are_unknown(gpu: SysfsTree) -> None:
    gpu.write(f"{CARD}/numa_node", "many")
    assert gpu.host.numa_nodes("/dev/dri/renderD128") == ()
    gpu.fail(f"{CARD}/numa_node")
    assert gpu.host.numa_nodes("/dev/dri/renderD128") == ()


@pytest.mark.parametrize("number", ["64", "4294967295"])
def test_a_number_that_the_topology_manager_has_no_bit_for_is_unknown(gpu: SysfsTree, number: str) -> None:
    gpu.write(f"{CARD}/numa_node", number)
    assert gpu.host.numa_nodes("/dev/dri/renderD128") == ()
    gpu.write("/sys/devices/pci0000:40/0000:40:01.0/numa_node", 63)
    assert gpu.host.numa_nodes("/dev/dri/renderD128") == (63,)


def test_a_node_that_is_not_online_was_told_to_the_kubelet(gpu: SysfsTree, caplog: pytest.LogCaptureFixture) -> None:
    gpu.write(f"{CARD}/numa_node", 1)
    gpu.write("/sys/devices/system/node/online", "0,2-3")
    for _ in range(2):
        assert gpu.host.numa_nodes("/dev/dri/renderD128") == ()
    assert caplog.messages == [
        (
            f"{CARD}/numa_node is 1, and that NUMA node is not online (online: 0, 2, 3): the kubelet gets no NUMA "
            "node of this device; look for an update of the machine's firmware"
        )
    ]
    gpu.write(f"{CARD}/numa_node", 2)
    assert gpu.host.numa_nodes("/dev/dri/renderD128") == (2,)


def test_nodes_outside_sysfs_and_gone_ones_are_unknown(sysfs_tree: SysfsTree) -> None:
    sysfs_tree.stand_in("/dev/nvidia0", major=195, minor=0)
    assert sysfs_tree.host.numa_nodes("/dev/nvidia0") == ()
    assert sysfs_tree.host.numa_nodes("/dev/nothing") == ()
    assert Host().numa_nodes("/dev/null") == ()


def test_all_or_none(gpu: SysfsTree) -> None:
    gpu.write(f"{CARD}/numa_node", 1)
    other = gpu.pci_function("0000:01:00.0", vendor=1, device=2, numa_node=0)
    assert gpu.host.numa_nodes("/dev/dri/renderD128", other) == (0, 1)
    gpu.write(f"{other}/numa_node", -1)
    assert gpu.host.numa_nodes("/dev/dri/renderD128", other) == ()


def test_a_vfio_group_is_where_its_functions_are(sysfs_tree: SysfsTree) -> None:
    sysfs_tree.pci_function("0000:3b:00.0", vendor=1, device=2, numa_node=1, iommu_group=17)
    sysfs_tree.stand_in("/dev/vfio/17", major=240, minor=0)
    sysfs_tree.write("/sys/devices/virtual/vfio/17/dev", "240:0")
    sysfs_tree.link("/sys/dev/char/240:0", "../../devices/virtual/vfio/17")
    assert sysfs_tree.host.numa_nodes("/dev/vfio/17") == (1,)
    audio = sysfs_tree.pci_function("0000:3b:00.1", vendor=1, device=3, iommu_group=17)
    assert sysfs_tree.host.numa_nodes("/dev/vfio/17") == ()
    sysfs_tree.write(f"{audio}/numa_node", 1)
    assert sysfs_tree.host.numa_nodes("/dev/vfio/17") == (1,)


def test_an_auxiliary_device_is_where_its_function_is(sysfs_tree: SysfsTree) -> None:
    card = sysfs_tree.pci_function("0000:3b:00.0", vendor=0x15B3, device=0x1021, numa_node=1)
    sysfs_tree.write(f"{card}/mlx5_core.rdma.0/infiniband/mlx5_0/node_guid", "0")
    sysfs_tree.link("/sys/bus/auxiliary/devices/mlx5_core.rdma.0", f"{card}/mlx5_core.rdma.0")
    sysfs_tree.link("/sys/class/infiniband/mlx5_0", f"{card}/mlx5_core.rdma.0/infiniband/mlx5_0")
    assert sysfs_tree.host.numa_nodes("/sys/bus/auxiliary/devices/mlx5_core.rdma.0") == (1,)
    (device,) = sysfs_tree.host.class_devices("infiniband")
    assert device.numa_nodes == (1,)
    assert device.pci == sysfs_tree.host.pci_function("3b:00.0")


def _interface(tree: SysfsTree, name: str, *, card: str | None = None, lower: tuple[str, ...] = ()) -> str:
    directory = f"{card}/net/{name}" if card else f"/sys/devices/virtual/net/{name}"
    tree.write(f"{directory}/ifindex", 7)
    tree.link(f"/sys/class/net/{name}", directory)
    for below in lower:
        tree.link(f"{directory}/lower_{below}", f"/sys/class/net/{below}")
    return directory


def test_what_is_made_on_a_network_interface_is_where_that_is(sysfs_tree: SysfsTree) -> None:
    for number, node in enumerate((0, 1)):
        card = sysfs_tree.pci_function(f"0000:3b:00.{number}", vendor=1, device=2, numa_node=node)
        _interface(sysfs_tree, f"eth{number}", card=card)
    _interface(sysfs_tree, "vlan5", lower=("eth0",))
    _interface(sysfs_tree, "bond0", lower=("eth0", "eth1"))
    tap = f"{_interface(sysfs_tree, 'macvtap0', lower=('eth1',))}/macvtap/tap9"
    sysfs_tree.write(f"{tap}/dev", "242:1")
    sysfs_tree.link(f"{tap}/device", "../../../macvtap0")
    sysfs_tree.link("/sys/dev/char/242:1", tap)
    sysfs_tree.stand_in("/dev/tap9", major=242, minor=1)
    sysfs_tree.write("/sys/devices/virtual/infiniband/rxe0/parent", "vlan5")
    host = sysfs_tree.host

    assert host.numa_nodes("/sys/class/net/vlan5") == (0,)
    assert host.numa_nodes("/sys/class/net/bond0") == (0, 1)
    assert host.numa_nodes("/dev/tap9") == (1,)
    assert host.numa_nodes("/sys/devices/virtual/infiniband/rxe0") == (0,)
    interface = host.net_interface("bond0")
    assert interface is not None
    assert interface.lower == ["eth0", "eth1"]
    _interface(sysfs_tree, "dummy0")
    _interface(sysfs_tree, "bond1", lower=("eth0", "dummy0"))
    assert host.numa_nodes("/sys/class/net/bond1") == ()


def test_interfaces_in_a_circle_are_unknown(sysfs_tree: SysfsTree) -> None:
    _interface(sysfs_tree, "a", lower=("b",))
    _interface(sysfs_tree, "b", lower=("a",))
    assert sysfs_tree.host.numa_nodes("/sys/class/net/a") == ()
