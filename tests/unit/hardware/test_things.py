from __future__ import annotations

import pytest

from kdp.testing import SysfsTree


@pytest.fixture
def passed(sysfs_tree: SysfsTree) -> SysfsTree:
    """A function that VFIO offers by its group, without an IOMMU, and by its own node."""
    function = sysfs_tree.pci_function("0000:3b:02.0", vendor=1, device=2, driver="vfio-pci", iommu_group=41)
    for path, major in (("/dev/vfio/41", 240), ("/dev/vfio/noiommu-41", 241), ("/dev/vfio/devices/vfio7", 511)):
        sysfs_tree.stand_in(path, major=major, minor=0)
    sysfs_tree.stand_in("/dev/vfio/vfio", major=10, minor=196)
    sysfs_tree.write(f"{function}/vfio-dev/vfio7/dev", "511:0")
    sysfs_tree.link("/sys/dev/char/511:0", f"{function}/vfio-dev/vfio7")
    sysfs_tree.link("/dev/by-name/nic", "/dev/vfio/devices/vfio7")
    return sysfs_tree


@pytest.mark.parametrize(
    ("path", "things"),
    [
        ("/dev/vfio/41", ("c 240:0", "IOMMU group 41")),
        ("/dev/vfio/noiommu-41", ("c 241:0", "IOMMU group 41")),
        ("/dev/vfio/devices/vfio7", ("c 511:0", "IOMMU group 41")),
        ("/dev/by-name/nic", ("c 511:0", "IOMMU group 41")),
        ("/dev/vfio/vfio", ("c 10:196",)),
        ("/dev/vfio/42", ()),
    ],
)
def test_each_name_of_a_function_of_vfio_reaches_its_group(
    passed: SysfsTree, path: str, things: tuple[str, ...]
) -> None:
    assert passed.host.things_of_node(path) == things


def test_a_function_names_its_own_node(passed: SysfsTree) -> None:
    (function,) = passed.host.pci_functions()
    assert function.vfio_cdev == "/dev/vfio/devices/vfio7"
    passed.remove(f"{function.path}/vfio-dev")
    assert function.vfio_cdev is None


def test_two_nodes_with_one_number_are_one_thing(sysfs_tree: SysfsTree) -> None:
    for path in ("/dev/ttyUSB0", "/dev/modem"):
        sysfs_tree.stand_in(path, major=188, minor=0)
    sysfs_tree.write("/dev/plain", "")
    sysfs_tree.link("/dev/loop", "/dev/loop")
    things = [
        sysfs_tree.host.things_of_node(path) for path in ("/dev/ttyUSB0", "/dev/modem", "/dev/plain", "/dev/loop")
    ]
    assert things == [("c 188:0",), ("c 188:0",), (), ()]
