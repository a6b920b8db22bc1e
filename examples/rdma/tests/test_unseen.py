"""Trees that real nodes have and no recording shows: each was once taken for something else, or ended the scan."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import kdp
from kdp.testing import SysfsTree
from kdp_rdma import Rdma
from kdp_rdma.backend import WITHOUT_RDMA_CM

from .conftest import DOWN, GUID, Node, found, nodes_of

Write = Callable[[Any], Path]

FIRST, SECOND, THIRD = "0c42a10300000001-0", "0c42a10300000002-0", "0c42a10300000003-0"
OWN, PASSED, AWAY = "0000:d8:00.2", "0000:d8:00.3", "0000:d8:00.4"
ETHERNET = {"link_layer": "Ethernet", "lid": "0x0", "sm_lid": "0x0"}


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ("mlx5_1/parent", "ib\0x"),
        ("mlx5_1/device/infiniband_verbs/uverbs1/uevent", "MAJOR=231\nMINOR=193\nDEVNAME=infini\0band"),
        ("mlx5_1/device/infiniband_verbs/uverbs1/uevent", f"MAJOR={'9' * 5000}\nMINOR=\u00b2\nDEVNAME=x"),
        ("mlx5_1/ports/1/rate", f"{'9' * 400} Gb/sec (4X HDR)"),
        ("mlx5_1/device/numa_node", "255"),
    ],
)
def test_nonsense_of_one_adapter_ended_the_scan_of_all(node: SysfsTree, attribute: str, says: str) -> None:
    before = found(Rdma(node.host, mode="hca"))
    node.write(f"/sys/class/infiniband/{attribute}", says)

    now = found(Rdma(node.host, mode="hca"))

    assert list(now) == list(before)
    assert [id_ for id_ in before if id_ != SECOND and now[id_] != before[id_]] == []
    assert now[SECOND].health.is_healthy


def test_an_interface_may_have_a_name_that_is_no_text(node: SysfsTree) -> None:
    (node.path("/sys/devices/pci0000:af/0000:af:00.0/net") / os.fsdecode(b"\xff\xfe")).mkdir(parents=True)
    device = found(Rdma(node.host, mode="hca"))[SECOND]
    assert device.health.is_healthy
    assert "interfaces" not in device.attributes


def test_an_adapter_whose_name_no_variable_can_hold_is_left_out_alone(
    node: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    odd = os.fsdecode(b"mlx\xff")
    place = node.path("/sys/devices/pci0000:af/0000:af:00.0/infiniband")
    (place / "mlx5_1").rename(place / odd)
    node.link(f"/sys/class/infiniband/{odd}", f"/sys/devices/pci0000:af/0000:af:00.0/infiniband/{odd}")
    backend = Rdma(node.host, mode="hca")
    assert SECOND not in found(backend)
    assert {FIRST, THIRD} <= {*found(backend)}
    assert [message for message in caplog.messages if "is left out" in message and "must be UTF-8" in message]
    (slot,) = Rdma(node.host, rdma_hca_max=1, link_types=["infiniband"]).discover()
    assert slot.edits.env["RDMA_DEVICES"] == "mlx5_0"


def test_what_is_no_guid_is_no_id(node: SysfsTree) -> None:
    for name in ("mlx5_0", "mlx5_1"):
        node.write(f"/sys/class/infiniband/{name}/node_guid", "(null)")
    devices = found(Rdma(node.host, mode="hca", link_types=["infiniband"]))
    assert list(devices) == ["0000:3b:00.0-0", "0000:af:00.0-0"]
    assert all("guid" not in device.attributes for device in devices.values())


def test_subfunctions_without_a_guid_had_their_parents_address_for_an_id(node: SysfsTree) -> None:
    """All of one parent had, so that which was which hung on who came first."""
    made = Node(node)
    for index in (2, 3):
        directory = made.sf("0000:d8:00.0", index, 85 + index)
        made.hca(f"mlx5_{3 + index}", directory, guid="0000:0000:0000:0000", ports=[ETHERNET])
    backend = Rdma(node.host, mode="hca", if_names=["sf87", "sf88"])
    assert list(found(backend)) == ["mlx5_core.sf.2-0", "mlx5_core.sf.3-0"]
    node.vanish("/sys/class/infiniband/mlx5_5")
    assert list(found(backend)) == ["mlx5_core.sf.3-0"]


def test_soft_roce_on_a_vlan_has_the_guid_of_the_one_below(node: SysfsTree) -> None:
    for name in ("rxe0", "rxe1"):
        node.write(f"/sys/devices/virtual/infiniband/{name}/node_guid", "5054:00ff:fe12:3456")
        node.link(f"/sys/class/infiniband/{name}", f"/sys/devices/virtual/infiniband/{name}")
    ids = [id_ for id_ in found(Rdma(node.host, mode="hca")) if "rxe" in id_]
    assert ids == ["505400fffe123456-rxe0-0", "505400fffe123456-rxe1-0"]


def test_an_adapter_that_replaces_another_has_nothing_of_it(node: SysfsTree) -> None:
    backend = Rdma(node.host, mode="hca")
    assert found(backend)[SECOND].attributes["board"] == "MT_0000000222"
    node.write("/sys/class/infiniband/mlx5_1/node_guid", GUID(9))
    node.fail("/sys/class/infiniband/mlx5_1/board_id", errno.EINVAL)
    assert "board" not in found(backend)["0c42a10300000009-0"].attributes


def test_what_could_not_be_read_at_first_is_read_later(node: SysfsTree) -> None:
    """An adapter seen while it was being created never got a NUMA node, nor did the whole resource."""
    whole = found(Rdma(node.host, mode="hca"))[SECOND]
    for path in ("board_id", "device/numa_node"):
        node.fail(f"/sys/class/infiniband/mlx5_1/{path}", errno.ENODEV)
    backend = Rdma(node.host, mode="hca")
    assert found(backend)[SECOND].numa_nodes == ()
    for path in ("board_id", "device/numa_node"):
        node.heal(f"/sys/class/infiniband/mlx5_1/{path}")
    assert found(backend)[SECOND] == whole


def test_what_is_above_a_root_complex_is_none(sysfs_tree: SysfsTree) -> None:
    """On Azure and some ARM boards, two adapters shared "LNXSYSTM:00" and seemed close to each other."""
    made = Node(sysfs_tree)
    above = "/sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001"
    directory = f"{above}/pci9e2f:00/9e2f:00:02.0"
    for name, value in {"vendor": "0x15b3", "device": "0x101a", "class": "0x020000", "numa_node": "0"}.items():
        sysfs_tree.write(f"{directory}/{name}", value)
    sysfs_tree.link("/sys/bus/pci/devices/9e2f:00:02.0", directory)
    made.hca("mlx5_0", directory, guid=GUID(1), ports=[ETHERNET])
    (device,) = Rdma(sysfs_tree.host, mode="hca").discover()
    assert device.attributes["pciAddress"] == "9e2f:00:02.0"
    assert "resource.kubernetes.io/pcieRoot" not in device.attributes


# -- switchdev ---------------------------------------------------------------------------------------------------------


def test_a_domain_of_five_digits_is_an_address(sysfs_tree: SysfsTree) -> None:
    made = Node(sysfs_tree)
    made.hca("irdma0", made.pci("10000:e1:00.0", numa=1), guid="0000:0000:0000:0000", ports=[ETHERNET])
    (device,) = Rdma(sysfs_tree.host, mode="hca").discover()
    assert (device.id, device.numa_nodes, device.health.is_healthy) == ("10000:e1:00.0-0", (1,), True)


@pytest.fixture
def switchdev(node: SysfsTree) -> SysfsTree:
    """The third card's physical function in switchdev mode: an interface and a port for its first VF."""
    directory = "/sys/devices/pci0000:d8/0000:d8:00.0"
    Node(node).net(directory, "eth0_0")
    node.write(f"{directory}/net/eth0_0/phys_port_name", "pf0vf0")
    node.write(f"{directory}/net/eth0/phys_port_name", "p0")
    files = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": "Ethernet", "gid_attrs/ndevs/0": "eth0_0"}
    for name, value in files.items():
        node.write(f"{directory}/infiniband/mlx5_2/ports/2/{name}", value)
    return node


# -- what is left out is told ------------------------------------------------------------------------------------------


def test_a_node_that_containers_do_without_is_told_once(node: SysfsTree, caplog: pytest.LogCaptureFixture) -> None:
    node.remove("/dev/infiniband/umad2")
    backend = Rdma(node.host, mode="hca", link_types=["infiniband"])
    assert all(device.health.is_healthy for device in backend.discover())
    backend.discover()
    assert caplog.messages == ["mlx5_1: the device node of umad2 is gone, so containers start without it"]


def test_a_node_without_rdma_cm_says_so_once(node: SysfsTree, caplog: pytest.LogCaptureFixture) -> None:
    node.remove("/dev/infiniband/rdma_cm")
    backend = Rdma(node.host, mode="hca", link_types=["infiniband"])
    backend.discover()
    devices = found(backend)
    assert "infiniband/rdma_cm" not in nodes_of(devices[FIRST])
    assert [message.partition(",")[0] for message in caplog.messages] == ["there is no device node of rdma_cm"]


@pytest.mark.parametrize("mode", ["pool", "hca", "vf"])
def test_a_pod_that_came_before_rdma_cm_lacked_it_in_all_its_life(
    sysfs_tree: SysfsTree, mode: Literal["pool", "hca", "vf"]
) -> None:
    """The module was loaded after the plugin had started."""
    made = Node(sysfs_tree)
    physical = made.pci("0000:3b:00.0", numa=0)
    made.hca("mlx5_0", physical, guid=GUID(1), ports=[{}])
    made.net(physical, "ib0", link_type=32)
    function = made.vf("0000:3b:00.0", 0, "0000:3b:00.2", numa=0)
    made.hca("mlx5_1", function, guid=GUID(2), ports=[{}])
    made.net(function, "ib0v0", link_type=32)
    sysfs_tree.remove("/sys/class/misc/rdma_cm")
    sysfs_tree.remove("/dev/infiniband/rdma_cm")
    backend = Rdma(sysfs_tree.host, mode=mode)
    waiting = backend.discover()
    assert waiting
    assert {device.health.reason for device in waiting} == {WITHOUT_RDMA_CM}
    without = Rdma(sysfs_tree.host, mode=mode, need_rdma_cm=False).discover()
    assert without
    assert all(device.health.is_healthy for device in without)
    made._class_entry("/sys/devices/virtual/misc/rdma_cm", "misc", "rdma_cm", (10, 260))
    devices = backend.discover()
    assert all(device.health.is_healthy for device in devices)
    assert all("infiniband/rdma_cm" in nodes_of(device) for device in devices)


def test_a_pool_tells_which_of_its_adapters_is_down(node: SysfsTree, caplog: pytest.LogCaptureFixture) -> None:
    for name, value in DOWN.items():
        node.write(f"/sys/class/infiniband/mlx5_1/ports/1/{name}", value)
    backend = Rdma(node.host, rdma_hca_max=2, link_types=["infiniband"])
    assert all(slot.health.is_healthy for slot in backend.discover())
    backend.discover()
    (message,) = caplog.messages
    assert message.startswith("rdma/hca_shared_devices: mlx5_1 port 1 is DOWN (Polling")


@pytest.mark.parametrize("stacked", [False, True])
def test_a_default_route_of_ipv6_and_one_over_a_bond_are_the_nodes_own(
    node: SysfsTree, stacked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A function that carried the node was handed out: only IPv4 routes straight over it counted."""
    zeros, gateway = "0" * 32, "fe80" + "0" * 27 + "1"
    name = "bond0.100" if stacked else "eth0v0"
    node.write(
        "/proc/1/net/ipv6_route",
        f"{zeros} 00 {zeros} 00 {gateway} 00000400 00000001 00000000 00000003 {name}\n"
        f"fe80{'0' * 28} 40 {zeros} 00 {zeros} 00000100 00000001 00000000 00000001 eth0\n"
        f"{zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200 lo",
    )
    if stacked:
        for upper, lower in (("bond0.100", "bond0"), ("bond0", "eth0v0")):
            node.link(f"/sys/class/net/{upper}", f"/sys/devices/virtual/net/{upper}")
            node.link(f"/sys/devices/virtual/net/{upper}/lower_{lower}", f"/sys/class/net/{lower}")
    backend = Rdma(node.host, mode="vf")
    assert list(found(backend)) == list(found(backend)) == [AWAY]
    assert caplog.messages == [f"rdma/vf: {OWN} (eth0v0) carries the node's default route and is left out"]


def test_functions_that_lost_their_adapter_are_told(node: SysfsTree, caplog: pytest.LogCaptureFixture) -> None:
    backend = Rdma(node.host, mode="vf")
    node.vanish(f"/sys/devices/pci0000:d8/{AWAY}/infiniband/mlx5_4")
    assert list(found(backend)) == [OWN]
    assert caplog.messages == [f"rdma/vf: left out because no RDMA adapter is visible: {AWAY}"]


# -- drivers for programs ----------------------------------------------------------------------------------------------


def _passed(node: SysfsTree, write: Write, driver: str) -> tuple[kdp.Device, dict[str, Any]]:
    """Return the function that is for programs, bound to a driver, and what its container is told of it."""
    node.link(f"/sys/devices/pci0000:d8/{PASSED}/driver", f"/sys/bus/pci/drivers/{driver}")
    held = {"resourceList": [{"resourceName": "vf", "selectors": [{"drivers": [driver]}]}]}
    backend = Rdma(node.host, mode="vf", config=write(held))
    (device,) = backend.discover()
    edits = backend.allocate(kdp.Allocation(resource="intel.com/vf", devices=(device,), deadline=0))
    return device, json.loads(edits.env["PCIDEVICE_INTEL_COM_VF_INFO"])[PASSED]


def test_a_vendors_own_vfio_driver_is_vfio(node: SysfsTree, write_config: Write) -> None:
    """Its function was healthy, and its container got nothing."""
    device, told = _passed(node, write_config, "mlx5_vfio_pci")
    assert nodes_of(device) == ["vfio/vfio", "vfio/77"]
    assert told["vfio"] == {"mount": "/dev/vfio/vfio", "dev-mount": "/dev/vfio/77"}


def test_a_function_of_uio_has_its_node_or_is_unhealthy(node: SysfsTree, write_config: Write) -> None:
    """It was healthy, and its container got nothing."""
    driver = "igb_uio"
    device, told = _passed(node, write_config, driver)
    assert device.health.reason == f"{PASSED} is bound to {driver}, and has no device node"
    node.write(f"/sys/devices/pci0000:d8/{PASSED}/uio/uio4/uevent", "MAJOR=243\nMINOR=4\nDEVNAME=uio4")
    node.stand_in("/dev/uio4", major=243, minor=4)
    device, told = _passed(node, write_config, driver)
    assert told["uio"] == {"mount": "/dev/uio4"}
    assert (device.health.is_healthy, nodes_of(device)) == (True, ["uio4"])


@pytest.mark.parametrize(
    ("driver", "words"), [(None, "no driver is bound to it"), ("mlx5_core", "mlx5_core made no RDMA device")]
)
def test_an_adapter_without_a_driver_was_a_node_without_adapters(
    sysfs_tree: SysfsTree, driver: str | None, words: str
) -> None:
    """The plugin was ready with 0 devices, and an update of the DaemonSet went on."""
    assert not Rdma(sysfs_tree.host).discover()
    sysfs_tree.pci_function("0000:3b:00.0", vendor=0x15B3, device=0x1017, class_code=0x020000, driver=driver)
    with pytest.raises(kdp.NotReady, match=rf"0000:3b:00.0 \(15b3:1017\): {words}; load mlx5_core and mlx5_ib"):
        Rdma(sysfs_tree.host).discover()


def test_functions_without_rdma_waited_for_the_rdma_driver(sysfs_tree: SysfsTree) -> None:
    """An Ethernet adapter's virtual functions need no mlx5_ib, and the plugin was not ready without it."""
    of: Any = {"vendor": 0x15B3, "class_code": 0x020000, "driver": "mlx5_core"}
    parent = sysfs_tree.pci_function("0000:d8:00.0", device=0x101B, **of)
    own = sysfs_tree.pci_function("0000:d8:00.2", device=0x101C, **of)
    sysfs_tree.link(f"{own}/physfn", parent)
    sysfs_tree.link(f"{parent}/virtfn0", own)
    [function] = Rdma(sysfs_tree.host, mode="vf", is_rdma=False).discover()
    assert function.health.is_healthy
    with pytest.raises(kdp.NotReady, match="mlx5_core made no RDMA device"):
        Rdma(sysfs_tree.host, mode="vf").discover()
