from __future__ import annotations

import pytest

from kdp.hardware import Host, PciFunction, PciLink
from kdp.hardware.pci import normal_address
from kdp.testing import SysfsTree


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("00010000:3b:00.0", "10000:3b:00.0"),
        ("0000:3b:00.8", None),
        ("../../etc", None),
    ],
)
def test_an_address_is_written_as_sysfs_does(text: str, address: str | None) -> None:
    assert normal_address(text) == address


def test_functions_are_found_by_what_they_are(sysfs_tree: SysfsTree) -> None:
    sysfs_tree.pci_function("0000:3b:00.0", vendor=0x10DE, device=0x2330, class_code=0x030200, driver="nvidia")
    sysfs_tree.pci_function("0000:0a:00.0", vendor=0x15B3, device=0x1021, class_code=0x020700, driver="mlx5_core")
    host = sysfs_tree.host

    def found(**wanted: int | str) -> list[str]:
        return [function.address for function in host.pci_functions(**wanted)]  # type: ignore[arg-type]

    assert found() == ["0000:0a:00.0", "0000:3b:00.0"]
    assert found(vendor=0x10DE) == found(class_code=0x03) == found(class_code=0x0302) == ["0000:3b:00.0"]
    assert found(class_code=0x030200) == found(driver="nvidia") == found(device=0x2330) == ["0000:3b:00.0"]
    assert found(vendor=0x10DE, driver="vfio-pci") == found(class_code=0x0207_01) == []
    sysfs_tree.fail("/sys/bus/pci/devices/0000:3b:00.0/vendor")
    assert found(vendor=0x10DE) == []
    assert found(vendor=0x15B3) == ["0000:0a:00.0"]


def test_what_a_function_tells_and_does_not(sysfs_tree: SysfsTree) -> None:
    sysfs_tree.pci_function(
        "0000:3b:00.0",
        vendor=0x10DE,
        device=0x2330,
        numa_node=0,
        iommu_group=17,
        attributes={
            "current_link_speed": "8.0 GT/s PCIe",
            "current_link_width": 8,
            "max_link_speed": "Unknown",
            "max_link_width": 255,
            "local_cpulist": "0-1,4",
            "subsystem_vendor": "0x1028",
        },
    )
    function = sysfs_tree.host.pci_function("00000000:3B:00.0")
    assert function is not None
    assert function.link_now == PciLink(8.0, 8)
    assert function.link_max == PciLink(None, None)
    assert function.numa_node == 0
    assert function.local_cpus == (0, 1, 4)
    assert function.iommu_group == 17
    assert function.vfio_node == "/dev/vfio/17"
    assert (function.subsystem_vendor, function.subsystem_device, function.driver) == (0x1028, None, None)
    assert function.pci == function
    sysfs_tree.write(f"{function.path}/numa_node", -1)
    assert function.numa_node is None
    assert sysfs_tree.host.pci_function("0000:3c:00.0") is None


def test_links_in_a_circle_lead_to_no_function(sysfs_tree: SysfsTree) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        sysfs_tree.link(f"/sys/devices/virtual/x/{name}/device", f"../{other}")
    assert sysfs_tree.host.directory("/sys/devices/virtual/x/a").pci is None
    assert sysfs_tree.host.numa_nodes("/sys/devices/virtual/x/a") == ()


def test_virtual_functions_know_their_physical_one(sysfs_tree: SysfsTree) -> None:
    physical = sysfs_tree.pci_function(
        "0000:3b:00.0", vendor=1, device=2, attributes={"sriov_totalvfs": 16, "sriov_numvfs": 2}
    )
    for number in (0, 1, 10):
        directory = sysfs_tree.pci_function(f"0000:3b:{number + 1:02x}.0", vendor=1, device=3)
        sysfs_tree.link(f"{directory}/physfn", "../0000:3b:00.0")
        sysfs_tree.link(f"{physical}/virtfn{number}", f"../0000:3b:{number + 1:02x}.0")
    function = sysfs_tree.host.pci_function("3b:00.0")
    assert function is not None
    assert list(function.virtual_functions) == [0, 1, 10]
    assert function.virtual_function_limit == 16
    assert function.physical_function is None
    virtual = function.virtual_functions[10]
    assert virtual.address == "0000:3b:0b.0"
    assert virtual.physical_function == function
    sysfs_tree.vanish(virtual.path)
    assert list(function.virtual_functions) == [0, 1]


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", "pci0000:3a"),
        ("/sys/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0", "pci0000:00"),
        ("/sys/devices/platform/soc/pci0001:00/0001:00:00.0", None),
    ],
)
def test_the_root_complex_is_the_first_part_of_the_path(path: str, root: str | None) -> None:
    assert PciFunction(Host(), path).pcie_root == root
