from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kdp.hardware import Host
from kdp.hardware.capture import RecordingHost, capture, generic_paths, siblings
from kdp.hardware.snapshot import archive
from kdp.hardware.snapshot.redact import redact
from kdp.testing import SysfsTree

CARD = "/sys/devices/pci0000:3b/0000:3b:00.0"


@pytest.fixture
def node(sysfs_tree: SysfsTree) -> SysfsTree:
    sysfs_tree.pci_function(
        "0000:3b:00.0", vendor=0x10DE, device=0x2330, numa_node=1, attributes={"serial": "X1234567"}
    )
    sysfs_tree.pci_function("0000:3c:00.0", vendor=0x15B3, device=0x1021)
    sysfs_tree.fail(f"{CARD}/max_link_speed", errno.EINVAL)
    sysfs_tree.stand_in("/dev/widget0", major=240, minor=0)
    sysfs_tree.stand_in("/dev/ttyS0", major=4, minor=64)
    sysfs_tree.link("/dev/by-id/widget", "/dev/widget0")
    return sysfs_tree


def again(taken: archive.Snapshot, tmp_path: Path) -> Host:
    archive.write(taken, tmp_path / "taken.tar.gz")
    return Host.of_snapshot(tmp_path / "taken.tar.gz")


def test_a_recording_holds_what_was_asked_and_what_stands_beside_it(node: SysfsTree, tmp_path: Path) -> None:
    host = RecordingHost(node.host.root)
    (card,) = host.pci_functions(vendor=0x10DE)
    assert card.numa_node == 1
    assert card.link_max.speed is None
    assert host.node_fault("/dev/by-id/widget") is None
    assert host.reading("/proc/none").is_absent

    replayed = again(capture(node.host, [*host.seen, *siblings(node.host, host.seen)]), tmp_path)

    (card,) = replayed.pci_functions(vendor=0x10DE)
    assert card.numa_node == 1
    assert card.text("max_link_speed").errno == errno.EINVAL
    assert card.text("serial").value == "X1234567"  # was not read, but the next version may
    assert replayed.device_node("/dev/by-id/widget") == "/dev/widget0"
    assert replayed.device_number("/dev/by-id/widget") == (240, 0)
    assert not replayed.exists("/dev/ttyS0")
    assert replayed.reading("/proc/none").is_absent


def test_the_generic_selection(node: SysfsTree, tmp_path: Path) -> None:
    node.write(f"{CARD}/net/ib0/address", "00:11:22:33:44:55")
    node.write(f"{CARD}/net/ib0/statistics/rx_bytes", 5)
    node.write(f"{CARD}/config", "do not read")
    node.write(f"{CARD}/resource0_wc", "do not read")
    taken = capture(node.host, generic_paths(node.host))
    replayed = again(taken, tmp_path)
    assert [function.vendor for function in replayed.pci_functions()] == [0x10DE, 0x15B3]
    assert taken.nodes.keys() == {"/dev/widget0"}
    assert f"{CARD}/net/ib0/address" in taken.files
    assert not [path for path in taken.files if "statistics" in path]


def test_files_of_a_real_node_that_must_not_be_read_are_left_alone(tmp_path: Path) -> None:
    card = tmp_path / f"node{CARD}"
    card.mkdir(parents=True)
    for name in ("config", "resource0", "rom", "resource"):
        (card / name).write_text("x\n")
    (card / "binary").write_bytes(b"\x01\0\x02")
    (card / "large").write_bytes(b"x" * 300_000)
    paths = [f"{CARD}/{path.name}" for path in card.iterdir()]
    taken = capture(Host(tmp_path / "node"), paths)
    assert taken.files.keys() == {f"{CARD}/resource"}
    assert {path.rpartition("/")[2]: reason for path, reason in taken.unreadable.items()} == {
        "config": "not taken",
        "resource0": "not taken",
        "rom": "not taken",
        "binary": "binary, 3 bytes",
        "large": "too large, 300000 bytes",
    }


def test_links_in_a_circle_end(node: SysfsTree) -> None:
    node.link("/sys/a", "b")
    node.link("/sys/b", "a")
    assert capture(node.host, ["/sys/a/x"]).links == {"/sys/a": "b", "/sys/b": "a"}


def test_redaction_keeps_shape_and_sameness(node: SysfsTree) -> None:
    node.write(f"{CARD}/uevent", "SERIAL=X1234567")
    node.write(f"{CARD}/infiniband/mlx5_0/node_guid", "5054:00ff:fe12:3456")
    node.write(f"{CARD}/infiniband/mlx5_0/sys_image_guid", "5054:00ff:fe12:3456")
    node.write(f"{CARD}/infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:5054:00ff:fe12:3456")
    node.write(f"{CARD}/infiniband/mlx5_0/ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000")
    node.write(f"{CARD}/net/ib0/address", "00:00:00:00:00:00")
    taken = capture(node.host, generic_paths(node.host))

    def said(name: str) -> str:
        return taken.files[f"{CARD}/{name}"].data.decode().strip()

    assert redact(taken, []) == 0
    assert redact(taken, ["serials"]) == 2
    assert (said("serial"), said("uevent")) == ("00000001", "SERIAL=00000001")
    assert said("infiniband/mlx5_0/node_guid") == "5054:00ff:fe12:3456"
    redact(taken, ["addresses"])
    assert said("infiniband/mlx5_0/node_guid") == said("infiniband/mlx5_0/sys_image_guid") == "0000:0000:0000:0001"
    assert said("infiniband/mlx5_0/ports/1/gids/0") == "fe80:0000:0000:0000:0000:0000:0000:0001"
    assert said("infiniband/mlx5_0/ports/1/gids/1") == "0000:0000:0000:0000:0000:0000:0000:0000"
    assert said("net/ib0/address") == "00:00:00:00:00:00"
    assert said("vendor") == "0x10de"
    assert not [path for path, held in taken.files.items() if b"5054" in held.data or b"X1234567" in held.data]
