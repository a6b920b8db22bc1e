"""SR-IOV virtual functions, as sriov-network-device-plugin gives them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import kdp
from kdp.testing import SysfsTree
from kdp_example_rdma import Rdma

from .conftest import DOWN, found, nodes_of

Write = Callable[[Any], Path]

OWN, PASSED, AWAY = "0000:d8:00.2", "0000:d8:00.3", "0000:d8:00.4"


def _backend(node: SysfsTree, write: Write, *selectors: dict[str, Any], **more: Any) -> Rdma:
    return Rdma(
        node.host,
        mode="vf",
        config=write({"resourceList": [{"resourceName": "vf", "selectors": [*selectors], **more}]}),
    )


def _told(backend: Rdma, devices: Sequence[kdp.Device]) -> tuple[str, dict[str, Any]]:
    edits = backend.allocate(kdp.Allocation(resource="intel.com/vf", devices=tuple(devices), deadline=0))
    return edits.env["PCIDEVICE_INTEL_COM_VF"], json.loads(edits.env["PCIDEVICE_INTEL_COM_VF_INFO"])


def test_without_a_file_all_functions_with_rdma_are_one_resource(node: SysfsTree) -> None:
    devices = found(Rdma(node.host, mode="vf"))

    assert {device.resource for device in devices.values()} == {"rdma/vf"}
    assert list(devices) == [OWN, AWAY]
    assert nodes_of(devices[OWN]) == [
        *("infiniband/uverbs3", "infiniband/issm4", "infiniband/umad4", "infiniband/rdma_cm"),
    ]
    assert devices[OWN].numa_nodes == (1,)
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


def test_a_group_without_an_iommu_has_another_name_on_the_node(node: SysfsTree, write_config: Write) -> None:
    node.write("/sys/kernel/iommu_groups/77/name", "vfio-noiommu")
    node.stand_in("/dev/vfio/noiommu-77", major=240, minor=1)
    (device,) = _backend(node, write_config, {"drivers": ["vfio-pci"]}).discover()
    assert [(held.host_path, held.container_path) for held in device.edits.device_nodes] == [
        ("/dev/vfio/vfio", "/dev/vfio/vfio"),
        ("/dev/vfio/noiommu-77", "/dev/vfio/77"),
    ]


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


def test_what_is_wrong_with_a_function_itself(node: SysfsTree) -> None:
    backend = Rdma(node.host, mode="vf", is_rdma=False, pf_names=["eth0#1"])
    node.remove(f"/sys/devices/pci0000:d8/{PASSED}/iommu_group")
    assert [d.health.reason for d in backend.discover()] == [f"{PASSED} is bound to vfio-pci and in no IOMMU group"]
    node.remove(f"/sys/devices/pci0000:d8/{PASSED}/driver")
    assert [d.health.reason for d in backend.discover()] == [f"{PASSED} is bound to no driver"]


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


def test_what_a_backend_needs_is_what_it_reads(node: SysfsTree) -> None:
    assert Rdma(node.host).needs() == kdp.Needs(host_paths=("/dev", "/sys"), host_network=True)
    assert Rdma(node.host, mode="vf").needs() == kdp.Needs(host_paths=("/dev", "/proc", "/sys"), host_network=True)
