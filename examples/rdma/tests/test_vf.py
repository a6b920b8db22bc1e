"""SR-IOV virtual functions, as sriov-network-device-plugin gives them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import kdp
from kdp.testing import SysfsTree
from kdp_rdma import Rdma

from .conftest import DOWN, GUID, Node, found, nodes_of

Write = Callable[[Any], Path]

OWN, PASSED, AWAY = "0000:d8:00.2", "0000:d8:00.3", "0000:d8:00.4"


def _backend(node: SysfsTree, write: Write, *selectors: dict[str, Any], **more: Any) -> Rdma:
    return Rdma(
        node.host,
        mode="vf",
        config=write({"resourceList": [{"resourceName": "vf", "selectors": [*selectors], **more}]}),
    )


def _told(backend: Rdma, devices: Sequence[kdp.Device]) -> tuple[str, dict[str, Any]]:
    given = kdp.Allocation(resource="intel.com/vf", devices=tuple(devices), deadline=0, joined_env=backend.joined_env)
    edits = backend.allocate(given)
    return edits.env["PCIDEVICE_INTEL_COM_VF"], json.loads(edits.env["PCIDEVICE_INTEL_COM_VF_INFO"])


def test_without_a_file_all_functions_with_rdma_are_one_resource(node: SysfsTree) -> None:
    devices = found(Rdma(node.host, mode="vf"))

    assert {device.resource for device in devices.values()} == {"rdma/vf"}
    assert list(devices) == [OWN, AWAY]
    assert nodes_of(devices[OWN]) == [
        *("infiniband/uverbs3", "infiniband/issm4", "infiniband/umad4", "infiniband/rdma_cm"),
    ]
    assert devices[OWN].numa_nodes == (1,)
    assert devices[OWN].identity == f"/sys/devices/pci0000:d8/{OWN}"
    assert dict(devices[OWN].attributes) == {
        "driver": "mlx5_core",
        "vendor": "15b3",
        "device": "101c",
        "parent": "0000:d8:00.0",
        "parentInterfaces": "eth0",
        "netdev": "eth0v0",
        "linkLayer": "Ethernet",
        "resource.kubernetes.io/pcieRoot": "pci0000:d8",
        "adapters": "mlx5_3",
        "number": 0,
    }


def test_the_variables_are_those_of_the_go_plugin(node: SysfsTree, write_config: Write) -> None:
    backend = _backend(
        node,
        write_config,
        {"drivers": ["vfio-pci"]},
        {"isRdma": True, "needVhostNet": True},
        additionalInfo={"*": {"token": "all"}, AWAY: {"token": "mine", "more": "x"}},
    )
    node.stand_in("/dev/vhost-net", major=10, minor=238)
    node.stand_in("/dev/net/tun", major=10, minor=200)
    devices = found(backend)
    assert list(devices) == [OWN, PASSED, AWAY]

    addresses, info = _told(backend, [devices[OWN], devices[PASSED], devices[AWAY]])

    assert addresses == f"{OWN},{PASSED},{AWAY}"
    vhost = {"net-mount": "/dev/vhost-net", "tun-mount": "/dev/net/tun"}
    assert info == {
        OWN: {
            "generic": {"deviceID": OWN},
            "extra": {"token": "all"},
            "vhost": vhost,
            "rdma": {
                "uverbs": "/dev/infiniband/uverbs3",
                "umad": "/dev/infiniband/umad4",
                "issm": "/dev/infiniband/issm4",
                "rdma_cm": "/dev/infiniband/rdma_cm",
                "rdma_dev": "mlx5_3",
            },
        },
        PASSED: {
            "generic": {"deviceID": PASSED},
            "extra": {"token": "all"},
            "vfio": {"mount": "/dev/vfio/vfio", "dev-mount": "/dev/vfio/77"},
        },
        AWAY: {
            "generic": {"deviceID": AWAY},
            "extra": {"token": "mine", "more": "x"},
            "vhost": vhost,
            "rdma": {
                "uverbs": "/dev/infiniband/uverbs4",
                "umad": "/dev/infiniband/umad5",
                "issm": "/dev/infiniband/issm5",
                "rdma_cm": "/dev/infiniband/rdma_cm",
                "rdma_dev": "mlx5_4",
            },
        },
    }
    assert nodes_of(devices[PASSED]) == ["vfio/vfio", "vfio/77"]


def test_two_functions_of_one_iommu_group_were_two_devices_with_one_node(
    node: SysfsTree, write_config: Write, caplog: pytest.LogCaptureFixture
) -> None:
    made = Node(node)
    for number, address in ((3, "0000:d8:00.6"), (4, "0000:d8:00.5")):
        made.vf("0000:d8:00.0", number, address, numa=1, driver="vfio-pci", iommu_group=78)
    node.stand_in("/dev/vfio/78", major=240, minor=1)
    backend = _backend(node, write_config, {"drivers": ["vfio-pci"]})

    devices = found(backend)

    assert {id_: nodes_of(device) for id_, device in devices.items()} == {
        PASSED: ["vfio/vfio", "vfio/77"],
        "0000:d8:00.5": ["vfio/vfio", "vfio/78"],
    }
    assert devices["0000:d8:00.5"].attributes["groupMembers"] == "0000:d8:00.6"
    assert caplog.messages == [
        (
            "intel.com/vf: 0000:d8:00.6 is in IOMMU group 78 with 0000:d8:00.5, which a container gets as a whole, so "
            "the group is one device"
        )
    ]

    made.pci("0000:d8:00.7", numa=1, driver="i40e", iommu_group=78)

    devices = found(backend)
    assert devices[PASSED].health.is_healthy
    assert devices["0000:d8:00.5"].health.reason == (
        "VFIO does not open IOMMU group 78, because 0000:d8:00.7 is bound to i40e; bind all functions of the group to "
        "vfio-pci"
    )


SELECTED: list[tuple[dict[str, Any], list[str]]] = [
    ({"vendors": ["15b3"]}, [OWN, PASSED, AWAY]),
    ({"vendors": ["8086"]}, []),
    ({"devices": ["101c"], "drivers": ["mlx5_core"]}, [OWN, AWAY]),
    ({"pciAddresses": [PASSED]}, [PASSED]),
    ({"pfNames": ["eth0"]}, [OWN, PASSED, AWAY]),
    ({"pfNames": ["ETH0#0-1"]}, [OWN, PASSED]),
    ({"pfNames": ["eth0#0,2"]}, [OWN, AWAY]),
    ({"pfNames": ["eth1", "eth0#7"]}, []),
    ({"rootDevices": ["0000:d8:00.0#1-2"]}, [PASSED, AWAY]),
    ({"linkTypes": ["ether"]}, [OWN, PASSED, AWAY]),
    ({"linkTypes": ["infiniband"]}, []),
    ({"pKeys": ["0xffff"]}, [OWN, AWAY]),
    ({"pKeys": ["0x8001"]}, []),
    ({"acpiIndexes": ["101"]}, [PASSED]),
    ({"isRdma": True}, [OWN, AWAY]),
]


def test_selectors(node: SysfsTree, write_config: Write) -> None:
    node.write(f"/sys/bus/pci/devices/{PASSED}/acpi_index", 101)
    for selector, expected in SELECTED:
        assert list(found(_backend(node, write_config, selector))) == expected, selector


def test_the_first_resource_and_of_it_the_first_selector_has_a_function(node: SysfsTree, write_config: Write) -> None:
    plain, rdma = {"pfNames": ["eth0#0"]}, {"isRdma": True}
    path = write_config(
        {
            "resourceList": [
                {"resourceName": "a", "selectors": [plain, rdma]},
                {"resourceName": "b", "resourcePrefix": "example.com", "excludeTopology": True, "selectors": {}},
            ]
        }
    )
    with pytest.raises(kdp.ConfigurationError, match=r"resourceList\[1\]: has no selectors"):
        Rdma(node.host, mode="vf", config=path)
    path = write_config(path.read_text().replace('"selectors": {}', '"selectors": [{}]'))
    devices = found(Rdma(node.host, mode="vf", config=path))
    assert {id_: (device.resource, len(device.edits.device_nodes)) for id_, device in devices.items()} == {
        OWN: ("intel.com/a", 0),
        PASSED: ("example.com/b", 2),
        AWAY: ("intel.com/a", 4),
    }
    assert devices[PASSED].numa_nodes == ()


def test_what_leaves_a_function_out_was_not_told(
    node: SysfsTree, write_config: Write, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that was meant was shown among the others, without a word of is_rdma, which nobody had set."""
    assert Rdma(node.host, mode="vf", drivers=["vfio-pci"]).discover() == []
    assert caplog.messages == [
        (
            "rdma/vf: no virtual function is selected; there are "
            f"{OWN} (15b3:101c, mlx5_core, of eth0/0000:d8:00.0; left out by drivers), "
            f"{PASSED} (15b3:101c, vfio-pci, of eth0/0000:d8:00.0; left out by is_rdma=true), "
            f"{AWAY} (15b3:101c, mlx5_core, of eth0/0000:d8:00.0; left out by drivers)"
        )
    ]
    caplog.clear()
    # Of several selectors the nearest counts.
    far, near = {"vendors": ["8086"], "linkTypes": ["infiniband"]}, {"pfNames": ["eth0#5", "eth0#1"], "isRdma": True}
    assert _backend(node, write_config, far, near).discover() == []
    (message,) = caplog.messages
    left_out = [part.partition(")")[0] for part in message.split("left out by ")[1:]]
    assert left_out == ["pfNames", "isRdma=true", "pfNames"]
    caplog.clear()
    assert Rdma(node.host, mode="vf", device_ids=["1"], drivers=["vfio-pci"]).discover() == []
    assert "left out by device_ids, drivers)" in caplog.messages[0]


def test_a_group_without_an_iommu_was_not_recognized_in_a_pod(node: SysfsTree, write_config: Write) -> None:
    """The group says it in /sys/kernel, which pods do not have; its device node says it, too."""
    node.stand_in("/dev/vfio/noiommu-77", major=240, minor=0)
    (device,) = _backend(node, write_config, {"drivers": ["vfio-pci"]}).discover()
    assert [(held.host_path, held.container_path) for held in device.edits.device_nodes[1:]] == [
        ("/dev/vfio/noiommu-77", "/dev/vfio/77")
    ]


def test_functions_that_a_guest_was_given_were_not_there(
    sysfs_tree: SysfsTree, write_config: Write, caplog: pytest.LogCaptureFixture
) -> None:
    """In a guest they have no physfn, and look like plain cards."""
    guest = Node(sysfs_tree)
    guest.pci("0000:00:03.0", numa=0, driver="virtio-pci")
    used = guest.pci("0000:00:04.0", numa=0)
    guest.net(used, "eth1")
    guest.hca("mlx5_0", used, guid=GUID(1), ports=[{"link_layer": "Ethernet", **DOWN}])

    assert Rdma(sysfs_tree.host, mode="vf").discover() == []
    assert caplog.messages == [
        (
            "rdma/vf: no virtual function is selected; there are functions without a physical one, as in a guest: "
            "0000:00:04.0 (15b3:101b, mlx5_core, of eth1/0000:00:04.0; left out by having no physical function), "
            "0000:00:03.0 (15b3:101b, virtio-pci, of 0000:00:03.0; left out by is_rdma=true, having no physical "
            "function); name those that containers may have by pciAddresses in a file for the option config"
        )
    ]
    named = found(_backend(sysfs_tree, write_config, {"pciAddresses": ["0000:00:04.0"], "isRdma": True}))
    assert {id_: device.health.is_healthy for id_, device in named.items()} == {"0000:00:04.0": True}
    assert "infiniband/uverbs0" in nodes_of(named["0000:00:04.0"])

    guest.pci("0000:00:05.0", numa=0, driver="vfio-pci", iommu_group=5)
    sysfs_tree.stand_in("/dev/vfio/5", major=240, minor=0)
    assert list(found(_backend(sysfs_tree, write_config, {"pfNames": []}))) == ["0000:00:05.0"]


def test_a_resource_whose_functions_another_has_was_told_that_there_are_none(
    node: SysfsTree, write_config: Write, caplog: pytest.LogCaptureFixture
) -> None:
    lists = [{"resourceName": name, "selectors": [{"vendors": ["15b3"]}]} for name in ("a", "b")]
    backend = Rdma(node.host, mode="vf", config=write_config({"resourceList": lists}))
    assert {device.resource for device in backend.discover()} == {"intel.com/a"}
    assert caplog.messages == [
        f"intel.com/b: left out because they are of intel.com/a already: {OWN}, {PASSED}, {AWAY}"
    ]


def test_a_function_is_as_healthy_as_its_uplink_not_as_its_own_port(node: SysfsTree) -> None:
    backend = Rdma(node.host, mode="vf")
    assert all(device.health.is_healthy for device in backend.discover())  # though the ports of both are DOWN
    for name, value in DOWN.items():
        node.write(f"/sys/class/infiniband/mlx5_2/ports/1/{name}", value)
    assert {(device.health.reason or "").partition(" (")[0] for device in backend.discover()} == {
        "its uplink: mlx5_2 port 1 is DOWN"
    }


def test_without_rdma_the_uplink_is_the_interface(node: SysfsTree) -> None:
    backend = Rdma(node.host, mode="vf", is_rdma=False)
    node.vanish("/sys/devices/pci0000:d8/0000:d8:00.0/infiniband/mlx5_2")
    assert all(device.health.is_healthy for device in backend.discover())
    node.write("/sys/class/net/eth0/operstate", "lowerlayerdown")
    assert {device.health.reason for device in backend.discover()} == {"its uplink: eth0 is lowerlayerdown"}


def test_the_function_that_the_node_itself_uses_is_never_handed_out(node: SysfsTree) -> None:
    header = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT"
    node.write("/proc/1/net/route", f"{header}\neth0v0 00000000 0102A8C0 0003 0 0 0 00000000 0 0 0")
    assert list(found(Rdma(node.host, mode="vf"))) == [AWAY]
    node.write("/proc/1/net/route", f"{header}\neth0v0 0002A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0")
    assert list(found(Rdma(node.host, mode="vf"))) == [OWN, AWAY]


def test_in_the_exclusive_mode_an_adapter_in_a_container_stays_listed(node: SysfsTree) -> None:
    node.write("/sys/module/ib_core/parameters/netns_mode", "N")
    backend = Rdma(node.host, mode="vf")
    node.vanish(f"/sys/devices/pci0000:d8/{AWAY}/infiniband/mlx5_4")
    devices = found(backend)
    assert list(devices) == [OWN, AWAY]
    assert devices[AWAY].health.is_healthy
    assert nodes_of(devices[AWAY]) == []
    node.write("/sys/module/ib_core/parameters/netns_mode", "Y")
    assert list(found(backend)) == [OWN]


def test_in_the_exclusive_mode_a_guest_whose_adapters_are_all_in_containers_is_ready(
    sysfs_tree: SysfsTree, write_config: Write
) -> None:
    """No physical function's adapter stays behind in a guest, and the driver was said to be missing."""
    guest = Node(sysfs_tree)
    used = guest.pci("0000:00:04.0", numa=0)
    guest.net(used, "eth1")
    guest.hca("mlx5_0", used, guid=GUID(1), ports=[{"link_layer": "Ethernet"}])
    sysfs_tree.write("/sys/module/ib_core/parameters/netns_mode", "N")
    backend = _backend(sysfs_tree, write_config, {"pciAddresses": ["0000:00:04.0"], "isRdma": True})
    assert list(found(backend)) == ["0000:00:04.0"]
    sysfs_tree.vanish(f"{used}/infiniband/mlx5_0")
    sysfs_tree.vanish(f"{used}/net/eth1")
    assert {id_: device.health.is_healthy for id_, device in found(backend).items()} == {"0000:00:04.0": True}
    sysfs_tree.write("/sys/module/ib_core/parameters/netns_mode", "Y")
    with pytest.raises(kdp.NotReady, match="mlx5_core made no RDMA device"):
        backend.discover()


# -- vDPA --------------------------------------------------------------------------------------------------------------


def test_functions_by_their_vdpa_device(node: SysfsTree, write_config: Write) -> None:
    made = Node(node)
    made.vdpa(OWN, "blue", driver="vhost_vdpa", minor=3)
    made.vdpa(AWAY, "vdpa1", driver="virtio_vdpa", minor=0)
    vhost = _backend(node, write_config, {"vdpaType": "vhost"})

    devices = found(vhost)
    assert list(devices) == [OWN]
    assert nodes_of(devices[OWN]) == ["vhost-vdpa-3"]
    assert devices[OWN].attributes["vdpa"] == "vhost"
    assert _told(vhost, [devices[OWN]])[1][OWN]["vdpa"] == {"mount": "/dev/vhost-vdpa-3"}

    virtio = _backend(node, write_config, {"vdpaType": "virtio"})
    devices = found(virtio)
    assert list(devices) == [AWAY]
    assert nodes_of(devices[AWAY]) == []
    assert _told(virtio, [devices[AWAY]])[1][AWAY]["vdpa"] == {}
    assert list(found(_backend(node, write_config, {}))) == [OWN, PASSED, AWAY]


# -- subfunctions ------------------------------------------------------------------------------------------------------

PARENT = "0000:d8:00.0"
SELECTED_SUBFUNCTIONS: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [2, 3]),
    ({"vendors": ["15b3"], "devices": ["101b"], "drivers": ["mlx5_core"]}, [2, 3]),
    ({"devices": ["101c"]}, []),
    ({"pfNames": ["eth0#0-87"]}, [2]),
    ({"pfNames": ["eth0#88"]}, [3]),
    ({"pfNames": ["eth1"]}, []),
    ({"rootDevices": [PARENT]}, [2, 3]),
    ({"linkTypes": ["ether"]}, [2, 3]),
    ({"isRdma": True}, [2]),
]


@pytest.fixture
def subfunctions(node: SysfsTree) -> SysfsTree:
    """A node with two subfunctions; the first has its RDMA adapter."""
    made = Node(node)
    first = made.sf(PARENT, 2, 87)
    made.sf(PARENT, 3, 88)
    ethernet = {"link_layer": "Ethernet", "gid_attrs/ndevs/0": "sf87"}
    made.hca("mlx5_5", first, guid=GUID(5), ports=[{**ethernet, **DOWN}])
    return node


def _of_subfunctions(node: SysfsTree, write: Write, **selector: Any) -> Rdma:
    return _backend(node, write, {"auxTypes": ["sf"], **selector}, deviceType="auxNetDevice")


def test_subfunctions_are_selected_as_by_the_go_plugin(subfunctions: SysfsTree, write_config: Write) -> None:
    for selector, expected in SELECTED_SUBFUNCTIONS:
        devices = found(_of_subfunctions(subfunctions, write_config, **selector))
        assert list(devices) == [f"mlx5_core.sf.{index}" for index in expected], selector
    assert list(found(_backend(subfunctions, write_config, {}))) == [OWN, PASSED, AWAY]


def test_what_a_container_gets_of_a_subfunction(subfunctions: SysfsTree, write_config: Write) -> None:
    backend = _of_subfunctions(subfunctions, write_config, isRdma=True)
    (device,) = backend.discover()

    assert device.health.is_healthy  # though its port is DOWN
    assert device.numa_nodes == (1,)
    assert nodes_of(device) == [f"infiniband/{name}" for name in ("uverbs5", "issm6", "umad6", "rdma_cm")]
    told = {name: device.attributes[name] for name in ("auxType", "number", "parent", "netdev", "adapters")}
    assert device.identity == f"/sys/devices/pci0000:d8/{PARENT} subfunction 87"
    assert told == {"auxType": "sf", "number": 87, "parent": PARENT, "netdev": "sf87", "adapters": "mlx5_5"}
    addresses, info = _told(backend, [device])
    assert addresses == "mlx5_core.sf.2"
    assert info["mlx5_core.sf.2"]["generic"] == {"deviceID": "mlx5_core.sf.2"}
    assert info["mlx5_core.sf.2"]["rdma"]["rdma_dev"] == "mlx5_5"


def test_a_subfunction_is_as_healthy_as_its_uplink_and_needs_its_driver(
    subfunctions: SysfsTree, write_config: Write
) -> None:
    backend = _of_subfunctions(subfunctions, write_config)
    for name, value in DOWN.items():
        subfunctions.write(f"/sys/class/infiniband/mlx5_2/ports/1/{name}", value)
    assert {(device.health.reason or "").partition(" (")[0] for device in backend.discover()} == {
        "its uplink: mlx5_2 port 1 is DOWN"
    }
    for name, value in {"state": "4: ACTIVE", "phys_state": "5: LinkUp"}.items():
        subfunctions.write(f"/sys/class/infiniband/mlx5_2/ports/1/{name}", value)
    subfunctions.remove(f"/sys/devices/pci0000:d8/{PARENT}/mlx5_core.sf.3/driver")
    first, second = backend.discover()
    assert first.health.is_healthy
    assert second.health.reason == "mlx5_core.sf.3 is bound to no driver"


def test_the_adapter_of_a_subfunction_is_not_its_parents(subfunctions: SysfsTree) -> None:
    """The uplink's health is of the parent's adapter alone; functions do not get the other's nodes."""
    (adapter,) = (hca for hca in Rdma(subfunctions.host, mode="hca").discover() if hca.attributes["name"] == "mlx5_5")
    assert not adapter.health.is_healthy
    devices = found(Rdma(subfunctions.host, mode="vf"))
    assert all(device.health.is_healthy for device in devices.values())
    assert "infiniband/uverbs5" not in [name for device in devices.values() for name in nodes_of(device)]


def _iommufd(node: SysfsTree, address: str, number: int) -> None:
    directory = node.host.resolve(f"/sys/bus/pci/devices/{address}")
    node.write(f"{directory}/vfio-dev/vfio{number}/dev", f"511:{number}")
    node.stand_in(f"/dev/vfio/devices/vfio{number}", major=511, minor=number)
    node.stand_in("/dev/iommu", major=10, minor=127)


def test_a_function_of_vfio_was_given_without_the_nodes_of_iommufd(node: SysfsTree, write_config: Write) -> None:
    """QEMU and libvirt on Grace, and confidential machines, open no group."""
    _iommufd(node, PASSED, 3)
    backend = _backend(node, write_config, {"drivers": ["vfio-pci"]})
    (device,) = backend.discover()
    assert nodes_of(device) == ["vfio/vfio", "vfio/77", "iommu", "vfio/devices/vfio3"]
    _, info = _told(backend, [device])
    assert info[PASSED]["iommufd"] == {"mount": "/dev/iommu", "dev-mount": "/dev/vfio/devices/vfio3"}
    node.remove("/dev/iommu")
    assert nodes_of(backend.discover()[0]) == ["vfio/vfio", "vfio/77"]


def test_a_kernel_without_groups_of_vfio_has_the_nodes_of_iommufd_only(node: SysfsTree, write_config: Write) -> None:
    _iommufd(node, PASSED, 3)
    node.remove("/dev/vfio/77")
    node.remove("/dev/vfio/vfio")
    (device,) = _backend(node, write_config, {"drivers": ["vfio-pci"]}).discover()
    assert device.health.is_healthy
    assert nodes_of(device) == ["iommu", "vfio/devices/vfio3"]


def test_a_group_of_two_functions_is_given_with_the_nodes_of_both(node: SysfsTree, write_config: Write) -> None:
    made = Node(node)
    for number, address in ((3, "0000:d8:00.6"), (4, "0000:d8:00.5")):
        made.vf("0000:d8:00.0", number, address, numa=1, driver="vfio-pci", iommu_group=78)
        _iommufd(node, address, number)
    node.stand_in("/dev/vfio/78", major=240, minor=1)
    devices = found(_backend(node, write_config, {"drivers": ["vfio-pci"]}))
    assert nodes_of(devices["0000:d8:00.5"])[2:] == ["iommu", "vfio/devices/vfio4", "vfio/devices/vfio3"]
