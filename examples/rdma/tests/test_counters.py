"""What the ports count: from the files of the specification and of drivers, and only what is surely whole."""

from __future__ import annotations

import pytest

from kdp.testing import SysfsTree
from kdp_rdma import Rdma

from .conftest import GUID, found

IB0 = "/sys/bus/pci/devices/0000:3b:00.0/infiniband/mlx5_0/ports"
IB1 = "/sys/bus/pci/devices/0000:af:00.0/infiniband/mlx5_1/ports"
FIRST, SECOND = (GUID(number).replace(":", "") for number in (1, 2))


def count(node: SysfsTree, port: str, **values: int | str) -> None:
    """Write counters of a port; the folder is in front of each name: ``counters__port_rcv_data``."""
    for name, value in values.items():
        node.write(f"{node.host.resolve(port)}/{name.replace('__', '/')}", value)


def test_the_ports_of_an_adapter_are_added_up_in_bytes(node: SysfsTree) -> None:
    count(node, f"{IB0}/1", counters__port_xmit_data=1000, counters__port_rcv_data=2**62, counters__symbol_error=3)
    count(node, f"{IB0}/2", counters__port_xmit_data=1, counters__port_rcv_data=0, counters__symbol_error=4)
    count(node, f"{IB1}/1", counters__port_xmit_data=7, hw_counters__out_of_buffer=5, hw_counters__np_cnp_sent=6)
    backend = Rdma(node.host, mode="hca", link_types=["infiniband"])
    assert {*found(backend)} == {f"{FIRST}-0", f"{SECOND}-0"}
    assert backend.measure() == {
        f"{FIRST}-0": {
            "rdma_transmitted_bytes": 4004,
            "rdma_received_bytes": 2**64,
            "rdma_symbol_errors": 7,
        },
        f"{SECOND}-0": {
            "rdma_transmitted_bytes": 28,
            "rdma_receive_buffer_drops": 5,
            "rdma_congestion_notifications_sent": 6,
        },
    }
    count(node, f"{IB1}/1", counters__port_xmit_data=8)
    assert backend.measure()[f"{SECOND}-0"]["rdma_transmitted_bytes"] == 32


@pytest.mark.parametrize("says", ["N/A", "-1"])
def test_a_port_that_does_not_say_makes_no_sum_that_would_be_too_small(node: SysfsTree, says: str) -> None:
    count(node, f"{IB0}/1", counters__port_xmit_data=1000, counters__link_downed=2)
    count(node, f"{IB0}/2", counters__port_xmit_data=says, counters__link_downed=1)
    backend = Rdma(node.host, mode="hca", link_types=["infiniband"])
    backend.discover()
    assert backend.measure()[f"{FIRST}-0"] == {"rdma_link_downed": 3}


def test_each_slot_of_an_adapter_has_its_counters_and_a_pool_has_none(node: SysfsTree) -> None:
    count(node, f"{IB1}/1", counters__link_downed=2)
    backend = Rdma(node.host, mode="hca", link_types=["infiniband"], slots=2)
    backend.discover()
    measured = backend.measure()
    assert measured[f"{SECOND}-0"] == measured[f"{SECOND}-1"] == {"rdma_link_downed": 2}
    pool = Rdma(node.host)
    assert not any(pool.measure().values())
    pool.discover()
    assert not any(pool.measure().values())


def test_soft_roce_counts_in_the_drivers_folder(node: SysfsTree) -> None:
    """With the names of drivers/infiniband/sw/rxe/rxe_hw_counters.c."""
    count(
        node,
        f"{IB1}/1",
        hw_counters__sent_pkts=10,
        hw_counters__rcvd_pkts=20,
        hw_counters__out_of_seq_request=1,
        hw_counters__rcvd_rnr_err=2,
        hw_counters__link_downed=3,
    )
    backend = Rdma(node.host, mode="hca", link_types=["infiniband"])
    backend.discover()
    assert backend.measure()[f"{SECOND}-0"] == {
        "rdma_transmitted_packets": 10,
        "rdma_received_packets": 20,
        "rdma_link_downed": 3,
        "rdma_out_of_sequence_packets": 1,
        "rdma_receiver_not_ready": 2,
    }
