"""What each tree gives: those recorded of real kernels, and one made by hand with what soft-RoCE has not."""

from __future__ import annotations

import errno

import pytest

from kdp.testing import SysfsTree
from kdp_rdma import Rdma

from .conftest import GUID, found, nodes_of, recorded

EXCLUSIVE = (
    "the node's RDMA network namespace mode is exclusive, so no container with a network of its own could open it; "
    "run 'rdma system set netns shared' on the node"
)
RXE0, RXE1 = "505400fffe123456-0", "4cee9afffe7af5a7-0"


@pytest.mark.parametrize("name", ["rxe-6.1-active", "rxe-6.12-active"])
def test_soft_roce(name: str) -> None:
    devices = found(Rdma(recorded(name), mode="hca"))

    assert [device.attributes["name"] for device in devices.values()] == ["rxe0", "rxe1"]
    assert all(device.health.is_healthy and device.numa_nodes == () for device in devices.values())
    first = devices[RXE0]
    assert first.attributes["interfaces"] == "eth0"
    assert first.attributes["linkLayer"] == "Ethernet"
    assert "pciAddress" not in first.attributes
    assert first.unit == first.identity == "505400fffe123456"
    assert first.edits.env == dict.fromkeys(("RDMA_DEVICES_RDMA_HCA", "RDMA_DEVICES"), "rxe0")
    # 6.12 has no issm for RoCE: what is not there is not missing.
    issm = ["infiniband/issm0"] if name == "rxe-6.1-active" else []
    expected = ["infiniband/rdma_cm", "infiniband/umad0", "infiniband/uverbs0", *issm]
    assert sorted(nodes_of(first)) == sorted(expected)


def test_soft_roce_with_a_port_that_is_down() -> None:
    devices = found(Rdma(recorded("rxe-6.1-port-down"), mode="hca"))

    assert {id_: device.health.reason for id_, device in devices.items() if not device.health.is_healthy} == {
        RXE0: "rxe0 port 1 is DOWN (Disabled: its interface is set down, or the port is disabled)"
    }
    pool = found(Rdma(recorded("rxe-6.1-port-down"), rdma_hca_max=3))
    assert [device.health.is_healthy for device in pool.values()] == [True] * 3
    assert pool["hca_shared_devices-2"].attributes == {"adapters": "rxe0,rxe1", "healthyAdapters": 1}


def test_soft_roce_half_way_through_an_unplug_says_active_and_is_not() -> None:
    host = recorded("rxe-6.1-half-removed")
    (device,) = Rdma(host, mode="hca").discover()

    assert host.reading("/sys/class/infiniband/rxe0/ports/1/state").value == "4: ACTIVE"
    assert device.id == RXE0
    assert str(device.health) == (
        "Unhealthy (rxe0 has no uverbs device: it is being removed while in use, or ib_uverbs is not loaded)"
    )
    assert nodes_of(device) == ["infiniband/rdma_cm"]
    (slot,) = Rdma(host, rdma_hca_max=1).discover()
    assert slot.health.reason == device.health.reason
    assert slot.edits.env == dict.fromkeys(("RDMA_DEVICES_RDMA_HCA_SHARED_DEVICES", "RDMA_DEVICES"), "")


def test_infiniband(node: SysfsTree) -> None:
    devices = found(Rdma(node.host, mode="hca", link_types=["infiniband"]))

    assert {id_: (device.numa_nodes, str(device.health)) for id_, device in devices.items()} == {
        "0c42a10300000001-0": ((0,), "Healthy"),
        "0c42a10300000002-0": ((1,), "Healthy"),
    }
    first = devices["0c42a10300000001-0"]
    assert nodes_of(first) == [
        *("infiniband/uverbs0", "infiniband/issm0", "infiniband/issm1", "infiniband/umad0", "infiniband/umad1"),
        "infiniband/rdma_cm",
    ]
    assert dict(first.attributes) == {
        "name": "mlx5_0",
        "guid": "0c42a10300000001",
        "pciAddress": "0000:3b:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:3b",
        "vendor": "15b3",
        "device": "101b",
        "driver": "mlx5_core",
        "model": "MT4123",
        "board": "MT_0000000222",
        "firmware": "20.35.1012",
        "linkLayer": "InfiniBand",
        "rate": "100 Gb/sec (4X EDR)",
        "speed": 100,
        "netdev": "ib0",
        "interfaces": "ib0",
        "ports": 2,
        "activePorts": 1,
    }


STATES: list[tuple[str, str, str | None]] = [
    ("4: ACTIVE", "5: LinkUp", None),
    ("2: INIT", "5: LinkUp", "mlx5_1 port 1 is INIT: no subnet manager has configured it"),
    ("3: ARMED", "5: LinkUp", "mlx5_1 port 1 is ARMED: the subnet manager has not activated it yet"),
    ("5: ACTIVE_DEFER", "6: LinkErrorRecovery", "mlx5_1 port 1 is ACTIVE_DEFER: its link has just failed"),
    (
        "1: DOWN",
        "2: Polling",
        "mlx5_1 port 1 is DOWN (Polling: no signal, is the cable plugged in and its other end up?)",
    ),
    ("1: DOWN", "", "mlx5_1 port 1 is DOWN"),
    ("9: NEW", "5: LinkUp", "mlx5_1 port 1 is in the unknown state 9"),
    ("", "5: LinkUp", "/state is empty; expected a port's state such as 4: ACTIVE"),
]


def test_each_state_of_a_port_has_its_reason(node: SysfsTree) -> None:
    port = "/sys/class/infiniband/mlx5_1/ports/1"
    for state, physical, reason in STATES:
        backend = Rdma(node.host, mode="hca", if_names=["ib1"])
        node.write(f"{port}/state", state)
        node.write(f"{port}/phys_state", physical)
        (device,) = backend.discover()
        assert (device.health.reason or "").endswith(reason or ""), state
        assert device.health.is_healthy is (reason is None), state


def test_one_port_is_enough_unless_all_are_asked_for(node: SysfsTree) -> None:
    assert all(device.health.is_healthy for device in Rdma(node.host, mode="hca", if_names=["ib0"]).discover())
    (device,) = Rdma(node.host, mode="hca", if_names=["ib0"], ports="all").discover()
    assert (device.health.reason or "").startswith("mlx5_0 port 2 is DOWN")


def test_a_node_that_is_gone_and_a_node_of_another_device(node: SysfsTree) -> None:
    backend = Rdma(node.host, mode="hca", if_names=["ib1"])
    node.remove("/dev/infiniband/uverbs1")
    assert backend.discover()[0].health.reason == "the device node of uverbs1 (mlx5_1) is gone"
    # The number decides, not the name: this is some other device's.
    node.stand_in("/dev/infiniband/uverbs1", major=231, minor=250)
    assert not backend.discover()[0].health.is_healthy
    node.stand_in("/dev/infiniband/renamed", major=231, minor=193)
    assert backend.discover()[0].health.is_healthy
    assert "infiniband/renamed" in nodes_of(backend.discover()[0])


def test_the_exclusive_network_namespace_mode_is_told(node: SysfsTree, caplog: pytest.LogCaptureFixture) -> None:
    node.write("/sys/module/ib_core/parameters/netns_mode", "N")
    for backend in (Rdma(node.host, mode="hca"), Rdma(node.host, rdma_hca_max=2)):
        reasons = {device.health.reason for device in backend.discover()}
        assert reasons == {EXCLUSIVE}
        assert caplog.messages == [EXCLUSIVE]
        caplog.clear()
        node.write("/sys/module/ib_core/parameters/netns_mode", "Y")
        assert any(device.health.is_healthy for device in backend.discover())
        node.write("/sys/module/ib_core/parameters/netns_mode", "N")


def test_an_id_does_not_change_because_the_guid_cannot_be_read_just_now(node: SysfsTree) -> None:
    backend = Rdma(node.host, mode="hca")
    before = found(backend)
    node.fail("/sys/class/infiniband/mlx5_1/node_guid", errno.EINVAL)
    node.fail("/sys/class/infiniband/mlx5_1/fw_ver", errno.ENODEV)
    assert found(backend) == before
    assert "0000:af:00.0-0" in found(Rdma(node.host, mode="hca"))  # one that starts now knows no better


def test_two_adapters_with_one_guid_are_two_devices_and_neither_has_it_for_an_id(node: SysfsTree) -> None:
    """The second had the first one's id as soon as that was pulled out."""
    node.write("/sys/class/infiniband/mlx5_1/node_guid", GUID(1))
    backend = Rdma(node.host, mode="hca", link_types=["infiniband"])
    assert list(found(backend)) == ["0000:3b:00.0-0", "0000:af:00.0-0"]
    node.vanish("/sys/class/infiniband/mlx5_0")
    assert list(found(backend)) == ["0000:af:00.0-0"]
    node.bring_back("/sys/class/infiniband/mlx5_0")
    assert list(found(backend)) == ["0000:3b:00.0-0", "0000:af:00.0-0"]


def test_a_renamed_adapter_keeps_its_id(node: SysfsTree) -> None:
    backend = Rdma(node.host, mode="hca", if_names=["ib1"])
    assert list(found(backend)) == ["0c42a10300000002-0"]
    pci = "/sys/devices/pci0000:af/0000:af:00.0"
    node.path(f"{pci}/infiniband/mlx5_1").rename(node.path(f"{pci}/infiniband/ibp175s0"))
    node.link("/sys/class/infiniband/ibp175s0", f"{pci}/infiniband/ibp175s0")
    node.remove("/sys/class/infiniband/mlx5_1")
    for entry in (f"{pci}/infiniband_verbs/uverbs1", f"{pci}/infiniband_mad/umad2", f"{pci}/infiniband_mad/issm2"):
        node.write(f"{entry}/ibdev", "ibp175s0")
    (device,) = backend.discover()
    assert (device.id, device.health.is_healthy, device.edits.env["RDMA_DEVICES"]) == (
        "0c42a10300000002-0",
        True,
        "ibp175s0",
    )
