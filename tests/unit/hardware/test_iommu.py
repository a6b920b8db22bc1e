from __future__ import annotations

import pytest

from kdp.testing import SysfsTree


@pytest.mark.parametrize(
    ("driver", "in_the_way"),
    [("vfio-pci", None), ("mlx5_vfio_pci", None), ("pci-stub", None), ("pcieport", None), (None, None), ("ice", "ice")],
)
def test_a_group_with_a_driver_of_the_host_was_taken_for_one_that_vfio_opens(
    sysfs_tree: SysfsTree, driver: str | None, in_the_way: str | None
) -> None:
    sysfs_tree.pci_function("0000:3b:00.1", vendor=1, device=2, driver="vfio-pci", iommu_group=17)
    sysfs_tree.pci_function("0000:3b:00.0", vendor=1, device=2, driver=driver, iommu_group=17)
    sysfs_tree.remove("/sys/kernel")  # pods do not have it
    (group,) = sysfs_tree.host.iommu_groups().values()
    assert [member.address for member in group.members] == ["0000:3b:00.0", "0000:3b:00.1"]
    assert group.vfio_fault == (
        None
        if in_the_way is None
        else f"VFIO does not open IOMMU group 17, because 0000:3b:00.0 is bound to {in_the_way}; bind all functions of "
        "the group to vfio-pci"
    )
