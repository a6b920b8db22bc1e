"""The recorded nodes: every reader on every device, and each attribute failing alone."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kdp.hardware import Host
from kdp.testing import SysfsTree

from ..recorded import NAMES, file


@pytest.fixture(scope="module")
def nodes() -> dict[str, Host]:
    return {name: Host.of_snapshot(file(name)) for name in NAMES}


def facts(host: Host) -> dict[str, object]:
    """What a backend could want to know of this node, by device."""
    found: dict[str, object] = {}
    for name in ("infiniband", "infiniband_verbs", "infiniband_mad", "fpga_region", "misc"):
        for entry in host.class_devices(name):
            found[entry.path] = (entry.node, entry.number, entry.driver, entry.subsystem, entry.pci, entry.numa_nodes)
    for function in host.pci_functions():
        found[function.path] = (
            *(function.vendor, function.device, function.class_code, function.revision, function.driver),
            *(function.numa_node, function.local_cpus, function.link_now, function.link_max, function.iommu_group),
            *(function.physical_function, function.virtual_functions, function.net_names, function.vfio_node),
        )
    for interface in host.net_interfaces():
        found[interface.path] = (
            *(interface.index, interface.address, interface.state, interface.carrier, interface.mtu),
            *(interface.speed, interface.link_type, interface.lower, interface.pci, interface.numa_nodes),
        )
    return found


def test_the_fpga_boards(nodes: dict[str, Host]) -> None:
    host = nodes["dfl-6.1"]
    boards = host.pci_functions(driver="dfl-pci")
    assert [(board.address, board.vendor, board.numa_node) for board in boards] == [
        ("0000:41:00.0", 0x1234, 0),
        ("0000:81:00.0", 0x1234, 1),
    ]
    ports = [port for region in host.class_devices("fpga_region") for port in region.children("dfl-port.*")]
    assert [(port.node, port.numa_nodes, port.pci) for port in ports] == [
        ("/dev/dfl-port.0", (0,), boards[0]),
        ("/dev/dfl-port.1", (0,), boards[0]),
        ("/dev/dfl-port.2", (1,), boards[1]),
    ]
    assert [host.numa_nodes(port.node or "") for port in ports] == [(0,), (0,), (1,)]
    assert host.numa_nodes("/dev/dfl-port.0", "/dev/dfl-port.2") == (0, 1)
    compat = host.class_devices("fpga_region")[0].text("compat_id")
    assert compat.is_absent
    assert boards[0].text("resource0").errno == errno.EIO
    assert boards[0].link_now.speed == 2.5
    assert host.node_fault("/dev/dfl-port.2") is None
    assert host.node_fault("/dev/dfl-port.3") == "device node /dev/dfl-port.3 is gone"
    thermal = host.directories("/sys/class/fpga_region/region0/dfl-fme.0/hwmon/*")
    assert {part.text("name").value: part.integer("temp1_input").value for part in thermal}["dfl_fme_thermal"] == 45000


def test_the_soft_roce_devices(nodes: dict[str, Host]) -> None:
    for name in ("rxe-6.1-active", "rxe-6.12-active"):
        host = nodes[name]
        first, second = host.class_devices("infiniband")
        assert first.text("fw_ver").value == ""
        assert first.text("node_guid").value == "5054:00ff:fe12:3456"
        assert first.pci is None
        assert first.numa_nodes == second.numa_nodes == ()
        (port,) = first.children("ports/*")
        assert port.text("state").value == "4: ACTIVE"
        assert port.text("gid_attrs/ndevs/3").errno == errno.EINVAL
        assert [verbs.node for verbs in host.class_devices("infiniband_verbs")] == [
            "/dev/infiniband/uverbs0",
            "/dev/infiniband/uverbs1",
        ]
        verbs = host.directory_of_node("/dev/infiniband/uverbs1")
        assert verbs is not None
        assert verbs.text("ibdev").value == "rxe1"
        assert host.device_number("/dev/infiniband/uverbs1") == (231, 193) == verbs.number
        assert host.node_of_number("char", 231, 193) == "/dev/infiniband/uverbs1"
        assert host.node_of_number("block", 231, 193) is None

    eth0 = nodes["rxe-6.1-active"].net_interface("eth0")
    assert eth0 is not None
    assert (eth0.state, eth0.speed, eth0.integer("speed").value, eth0.carrier) == ("up", None, -1, True)
    assert eth0.text("phys_port_id").errno == errno.EOPNOTSUPP


def test_recorded_half_way_through(nodes: dict[str, Host]) -> None:
    down = nodes["rxe-6.1-port-down"].net_interface("eth0")
    assert down is not None
    assert (down.state, down.speed, down.carrier) == ("down", None, None)
    assert "Invalid argument" in str(down.integer("speed").problem)

    half = nodes["rxe-6.1-half-removed"]
    assert [entry.text("ports/1/state").value for entry in half.class_devices("infiniband")] == ["4: ACTIVE"]
    assert half.class_devices("infiniband_verbs") == []
    assert half.node_fault("/dev/infiniband/uverbs0") == "device node /dev/infiniband/uverbs0 is gone"
    assert half.node_fault("/dev/infiniband/rdma_cm") is None


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["rxe-6.1-half-removed", "dfl-6.1"])
@pytest.mark.parametrize("how", ["absent", "empty", "EINVAL"])
def test_each_attribute_failing_alone_raises_nothing_and_changes_no_other_device(
    name: str, how: str, tmp_path: Path, figure: Callable[[str, float, str], None]
) -> None:
    tree = SysfsTree(tmp_path / "node", snapshot=file(name))
    before = facts(tree.host)
    devices = tree.host.pci_functions() or tree.host.net_interfaces()
    attributes = [
        path
        for device in devices[:1]
        for path in tree.host.glob(f"{device.path}/*")
        if tree.path(path).is_file() and not tree.path(path).is_symlink()
    ]
    assert len(attributes) > 20
    started = time.monotonic()
    for path in attributes:
        kept = tree.path(path).read_bytes()
        if how == "absent":
            tree.path(path).unlink()
        elif how == "empty":
            tree.path(path).write_bytes(b"")
        else:
            tree.fail(path, getattr(errno, how))
        now = facts(tree.host)
        related = {found for found in before if found.startswith(path.rpartition("/")[0])}
        changed = {found for found in before.keys() | now.keys() if before.get(found) != now.get(found)}
        assert changed <= related, path
        if how in ("absent", "empty"):
            tree.path(path).write_bytes(kept)
        else:
            tree.heal(path)
    assert facts(tree.host) == before
    figure(f"a scan of {name}", (time.monotonic() - started) / len(attributes) * 1000, "ms")
