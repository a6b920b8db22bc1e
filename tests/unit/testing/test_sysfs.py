from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from kdp.testing import SysfsTree


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
