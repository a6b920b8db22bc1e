from __future__ import annotations

import errno
import os
import shutil
import tarfile  # noqa: F401 - loaded before: the interpreter may be in root's home
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from kdp.hardware import Host
from kdp.testing import SysfsTree
from kdp_testkit.pytest_plugin import NodeFrom

RECORDED = Path(__file__).parents[2] / "data/hardware"


def test_a_pci_function_looks_as_the_kernel_shows_it(sysfs_tree: SysfsTree) -> None:
    address = "0000:3b:00.1"
    directory = sysfs_tree.pci_function(
        address,
        vendor=0x10DE,
        device=0x2330,
        numa_node=1,
        driver="vfio-pci",
        iommu_group=17,
        attributes={"sriov_totalvfs": 16},
    )
    host = sysfs_tree.host

    assert directory == f"/sys/devices/pci0000:3b/{address}"
    assert host.glob("/sys/bus/pci/devices/*") == [f"/sys/bus/pci/devices/{address}"]
    assert host.resolve(f"/sys/bus/pci/devices/{address}") == directory
    assert host.resolve(f"{directory}/driver").endswith("/vfio-pci")
    assert host.resolve(f"/sys/kernel/iommu_groups/17/devices/{address}") == directory
    names = ("vendor", "device", "class", "numa_node", "sriov_totalvfs")
    read = {name: sysfs_tree.path(f"{directory}/{name}").read_text() for name in names}
    assert read == {
        "vendor": "0x10de\n",
        "device": "0x2330\n",
        "class": "0x120000\n",
        "numa_node": "1\n",
        "sriov_totalvfs": "16\n",
    }


def test_numa_nodes_are_online_together(sysfs_tree: SysfsTree) -> None:
    sysfs_tree.numa_node(0, cpus="0-7")
    sysfs_tree.numa_node(2, cpus="8-15")

    assert sysfs_tree.path("/sys/devices/system/node/online").read_text() == "0,2\n"
    assert sysfs_tree.path("/sys/devices/system/node/node2/cpulist").read_text() == "8-15\n"


def test_a_device_node_is_one_and_can_be_pulled_out(sysfs_tree: SysfsTree) -> None:
    path = sysfs_tree.char_device("/dev/widget0", major=1, minor=5)

    assert sysfs_tree.host.device_type(path) == "char"
    sysfs_tree.remove(path)
    assert sysfs_tree.host.device_type(path) is None


def test_a_directory_and_a_link_can_be_removed(sysfs_tree: SysfsTree) -> None:
    directory = sysfs_tree.pci_function("0000:01:00.0", vendor=1, device=2)
    sysfs_tree.remove("/sys/bus/pci/devices/0000:01:00.0")
    assert sysfs_tree.host.exists(directory)
    sysfs_tree.remove(directory)
    assert not sysfs_tree.host.exists(directory)
    with pytest.raises(FileNotFoundError):
        sysfs_tree.remove(directory)


def test_where_nodes_are_not_permitted_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "mknod", refuse)

    with pytest.raises(PermissionError, match=r"a device node \(/dev/a\) can only be made by root"):
        SysfsTree(tmp_path / "a").char_device("/dev/a")
    with pytest.raises(pytest.skip.Exception, match="can only be made by root"):
        SysfsTree(tmp_path / "b", not_permitted=pytest.skip).char_device("/dev/a")


def test_an_attribute_fails_and_heals(sysfs_tree: SysfsTree) -> None:
    directory = sysfs_tree.pci_function("0000:3b:00.0", vendor=1, device=2)
    card = sysfs_tree.host.directory("/sys/bus/pci/devices/0000:3b:00.0")
    path = sysfs_tree.fail("/sys/bus/pci/devices/0000:3b:00.0/vendor", errno.EINVAL)

    assert path == f"{directory}/vendor"
    assert card.text("vendor").errno == errno.EINVAL
    assert Host(sysfs_tree.host.root).reading(path).errno == errno.EINVAL  # as another process sees it
    assert path in sysfs_tree.host.glob(f"{directory}/*")
    sysfs_tree.fail(path, errno.ENODEV)
    assert card.text("vendor").errno == errno.ENODEV
    sysfs_tree.heal(path)
    assert card.hexadecimal("vendor").value == 1
    sysfs_tree.fail(path)
    sysfs_tree.write(path, "0x2")
    assert card.hexadecimal("vendor").value == 2
    sysfs_tree.fail(f"{directory}/new", errno.EOPNOTSUPP)
    assert card.text("new").errno == errno.EOPNOTSUPP
    sysfs_tree.heal(f"{directory}/new")
    assert card.text("new").value == ""


def test_hardware_vanishes_with_all_that_leads_to_it_and_comes_back(node_from: NodeFrom) -> None:
    tree = node_from(RECORDED / "dfl-6.1.tar.gz")

    def everything() -> list[str]:
        return [*tree.host.glob("/dev/*"), *tree.host.glob("/sys/class/*/*"), *tree.host.glob("/sys/bus/pci/devices/*")]

    before = everything()
    tree.vanish("/sys/bus/pci/devices/0000:41:00.0")
    assert [board.address for board in tree.host.pci_functions()] == ["0000:81:00.0"]
    assert tree.host.device_nodes() == ["/dev/dfl-fme.1", "/dev/dfl-port.2"]
    assert [region.name for region in tree.host.class_devices("fpga_region")] == ["region3", "region4"]
    assert not [path for path in everything() if not tree.host.exists(path)]
    assert tree.host.node_fault("/dev/dfl-port.0") == "device node /dev/dfl-port.0 is gone"
    tree.vanish("/sys/bus/pci/devices/0000:81:00.0")
    assert tree.host.device_nodes() == []
    with pytest.raises(FileNotFoundError):
        tree.vanish("/sys/bus/pci/devices/0000:41:00.0")
    tree.bring_back("/sys/bus/pci/devices/0000:41:00.0")
    assert [board.address for board in tree.host.pci_functions()] == ["0000:41:00.0"]
    assert tree.host.numa_nodes("/dev/dfl-port.0") == (0,)
    with pytest.raises(FileNotFoundError, match="nothing of this path has vanished"):
        tree.bring_back("/sys/bus/pci/devices/0000:41:00.0")
    tree.bring_back("/sys/bus/pci/devices/0000:81:00.0")
    assert everything() == before
    tree.vanish("/dev/dfl-port.0")
    assert tree.host.device_type("/dev/dfl-port.0") is None
    tree.bring_back("/dev/dfl-port.0")
    assert tree.host.device_type("/dev/dfl-port.0") == "char"


def test_a_tree_can_be_saved_and_mounted_again(sysfs_tree: SysfsTree, node_from: NodeFrom, tmp_path: Path) -> None:
    sysfs_tree.pci_function("0000:3b:00.0", vendor=0x10DE, device=2, driver="widget", iommu_group=3)
    sysfs_tree.fail("/sys/bus/pci/devices/0000:3b:00.0/numa_node", errno.EINVAL)
    sysfs_tree.stand_in("/dev/widget0", major=240, minor=7)
    sysfs_tree.save(tmp_path / "node.tar.gz")

    one, two = node_from(tmp_path / "node.tar.gz"), node_from(tmp_path / "node.tar.gz")

    two.vanish("/sys/bus/pci/devices/0000:3b:00.0")
    assert two.host.pci_functions() == []
    (card,) = one.host.pci_functions(driver="widget")
    assert (card.vendor, card.numa_node, card.iommu_group) == (0x10DE, None, 3)
    assert card.integer("numa_node").errno == errno.EINVAL
    assert one.host.device_number("/dev/widget0") == (240, 7)


def test_a_stand_in_needs_no_right() -> None:
    """Made as somebody who is not root, if we are."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o777)
    snapshot = shutil.copy(RECORDED / "rxe-6.1-active.tar.gz", directory)  # the checkout may be in root's home, too
    if os.getuid() == 0:
        os.seteuid(65534)
    try:
        tree = SysfsTree(directory / "node", snapshot=snapshot)
        tree.stand_in("/dev/widget0", major=240, minor=0)
        assert tree.host.device_type("/dev/widget0") == "char"
        assert tree.host.device_type("/dev/infiniband/uverbs0") == "char"
        tree.vanish("/sys/class/infiniband_verbs/uverbs0")
        assert tree.host.device_type("/dev/infiniband/uverbs0") is None
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        shutil.rmtree(directory)
