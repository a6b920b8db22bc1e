from __future__ import annotations

from kdp.model.labels import check_node_label
from kdp.testing import SysfsTree
from kdp_rdma import Rdma

from .conftest import Node, recorded


def _labels(backend: Rdma) -> dict[str, str]:
    found = backend.labels(backend.discover())
    for name, value in found.items():
        check_node_label(name, value)
    return found


def test_a_pool_counts_its_adapters_and_not_its_slots() -> None:
    found = _labels(Rdma(recorded("rxe-6.1-active"), rdma_hca_max=100))
    assert found["rdma/hca_shared_devices.count"] == "2"
    assert found["rdma/hca_shared_devices.slots"] == "100"
    assert found["rdma/hca_shared_devices.link-layer"] == "Ethernet"


def test_adapters_are_labeled_by_what_they_have_in_common(sysfs_tree: SysfsTree) -> None:
    node = Node(sysfs_tree)
    for number in (0, 1):
        directory = node.pci(f"0000:3b:00.{number}", numa=0)
        node.hca(f"mlx5_{number}", directory, guid=f"0c42:a103:00{number}0:0000", ports=[{}])
    found = _labels(Rdma(node.host, mode="hca", slots=3))
    assert (found["rdma/hca.count"], found["rdma/hca.slots"]) == ("2", "6")
    assert found["rdma/hca.product"] == "MT4123"
    assert found["rdma/hca.firmware-version"] == "20.35.1012"
    assert (found["rdma/hca.vendor"], found["rdma/hca.device"], found["rdma/hca.driver"]) == (
        "15b3",
        "101b",
        "mlx5_core",
    )


def test_a_pool_of_so_many_adapters_that_no_attribute_names_them_had_no_labels(sysfs_tree: SysfsTree) -> None:
    node = Node(sysfs_tree)
    for number in range(12):
        directory = node.pci(f"0000:3b:{number:02x}.0", numa=0)
        node.hca(f"mlx5_{number}", directory, guid=f"0c42:a103:00{number:02x}:0000", ports=[{}])
    found = _labels(Rdma(node.host, rdma_hca_max=100))
    assert found["rdma/hca_shared_devices.count"] == "12"
    assert found["rdma/hca_shared_devices.slots"] == "100"
    assert found["rdma/hca_shared_devices.product"] == "MT4123"
