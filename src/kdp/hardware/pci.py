"""`PciFunction`: what sysfs tells of a PCI function, be it physical or virtual.

Source of the names: the kernel's Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, final

import attrs

from .directory import Directory

if TYPE_CHECKING:
    from .host import Host

__all__ = ["PciFunction", "PciLink", "functions", "normal_address"]

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
DEVICES = "/sys/bus/pci/devices"


def normal_address(text: str) -> str | None:
    """Return a PCI address as sysfs writes it, of ``00000000:3B:00.0`` ``0000:3b:00.0``; None: this is none."""
    text = text.strip().lower()
    match = _ADDRESS.fullmatch(f"0000:{text}" if text.count(":") == 1 else text)
    if match is None:
        return None
    domain = int(match[1], 16)
    return f"{domain:04x}:{match[2]}:{match[3]}.{match[4]}"


@final
@attrs.frozen
class PciLink:
    """How a PCI function is connected, or could be.

    Attributes:
        speed: Of each lane, in GT/s (10^9 transfers a second); None: unknown.
        width: The number of lanes; None: unknown.
    """

    speed: float | None
    width: int | None


@final
@attrs.frozen
class PciFunction(Directory):
    """A PCI function. A property is None where sysfs does not tell; `Directory.text` and its like tell the reason."""

    @property
    def address(self) -> str:
        """As ``0000:3b:00.0``: domain, bus, device, function."""
        return self.name

    @property
    def vendor(self) -> int | None:
        """The vendor's id, as 0x10de."""
        return self.hexadecimal("vendor").value

    @property
    def device(self) -> int | None:
        """The device's id, which the vendor gave."""
        return self.hexadecimal("device").value

    @property
    def subsystem_vendor(self) -> int | None:
        """The id of the board's maker."""
        return self.hexadecimal("subsystem_vendor").value

    @property
    def subsystem_device(self) -> int | None:
        """The board's id, which its maker gave."""
        return self.hexadecimal("subsystem_device").value

    @property
    def class_code(self) -> int | None:
        """Class, subclass and programming interface in 24 bits: 0x030200 is a 3D controller, 0x020700 InfiniBand."""
        return self.hexadecimal("class").value

    @property
    def revision(self) -> int | None:
        """The revision."""
        return self.hexadecimal("revision").value

    @property
    def numa_node(self) -> int | None:
        """Its memory node; None: unknown (the file says -1, or there is none). Node 0 is a node."""
        node = self.integer("numa_node").value
        return node if node is not None and node >= 0 else None

    @property
    def pcie_root(self) -> str | None:
        """The root complex above it, as ``pci0000:3a``: functions below the same one reach each other without a processor."""
        root = self.path.removeprefix("/sys/devices/").partition("/")[0]
        return root if root.startswith("pci") else None

    @property
    def local_cpus(self) -> tuple[int, ...] | None:
        """The processors that are near to it."""
        return self.numbers("local_cpulist").value

    @property
    def link_now(self) -> PciLink:
        """The link as it is; a card at rest may have slowed it down."""
        return self._link("current")

    @property
    def link_max(self) -> PciLink:
        """The best link that it can do."""
        return self._link("max")

    def _link(self, which: str) -> PciLink:
        # "8.0 GT/s PCIe", "2.5 GT/s", "Unknown"; a width of 0 or 255 is that of no link.
        speed = self.text(f"{which}_link_speed").parsed(lambda text: float(text.split()[0]), "a speed").value
        width = self.integer(f"{which}_link_width").value
        return PciLink(speed, width if width is not None and 0 < width <= 64 else None)

    @property
    def iommu_group(self) -> int | None:
        """The number of its IOMMU group; None: it is in none."""
        name = self.link("iommu_group")
        return int(name) if name is not None and name.isdigit() else None

    @property
    def vfio_node(self) -> str | None:
        """``/dev/vfio/N`` of its IOMMU group; None: it is in none. It is there while vfio-pci is the driver."""
        group = self.iommu_group
        return None if group is None else f"/dev/vfio/{group}"

    @property
    def net_names(self) -> list[str]:
        """The names of its network interfaces."""
        return [entry.name for entry in self.children("net/*")]

    # -- SR-IOV --------------------------------------------------------------------------------------------------------

    @property
    def physical_function(self) -> PciFunction | None:
        """The physical function of a virtual one; None: it is no virtual function."""
        address = self.link("physfn")
        return None if address is None else self.host.pci_function(address)

    @property
    def virtual_functions(self) -> dict[int, PciFunction]:
        """The virtual functions that are there now, by their number (``virtfn0``)."""
        found: dict[int, PciFunction] = {}
        for entry in self.host.glob(f"{self.host.escape(self.path)}/virtfn*"):
            number = entry.rpartition("virtfn")[2]
            address = self.link(f"virtfn{number}")
            function = self.host.pci_function(address) if address is not None else None
            if function is not None and number.isdigit():
                found[int(number)] = function
        return dict(sorted(found.items()))

    @property
    def virtual_function_limit(self) -> int:
        """How many virtual functions it could have (``sriov_totalvfs``); 0: it knows nothing of SR-IOV."""
        return self.integer("sriov_totalvfs").or_else(0)


def functions(
    host: Host, *, vendor: int | None, device: int | None, class_code: int | None, driver: str | None
) -> list[PciFunction]:
    """See `kdp.hardware.Host.pci_functions`."""
    found = [PciFunction(host, entry.path) for entry in host.directories(f"{DEVICES}/*")]
    wanted = [
        function
        for function in found
        if (vendor is None or function.vendor == vendor)
        and (device is None or function.device == device)
        and (class_code is None or _is_of_class(function.class_code, class_code))
        and (driver is None or function.driver == driver)
    ]
    return sorted(wanted, key=lambda function: function.address)


def _is_of_class(code: int | None, wanted: int) -> bool:
    """Return whether a class is this one; one byte (0x03) means the class, two (0x0302) class and subclass."""
    if code is None:
        return False
    return wanted in (code, code >> 8, code >> 16)


def of_directory(directory: Directory, *, links: int = 4) -> PciFunction | None:
    """See `kdp.hardware.Directory.pci`; so many links ``device`` are followed, in case they form a circle."""
    if directory.path.startswith("/sys/devices/"):
        parts = directory.path.split("/")
        for end in range(len(parts), 3, -1):  # the nearest is at the end
            if normal_address(parts[end - 1]) == parts[end - 1]:
                return PciFunction(directory.host, "/".join(parts[:end]))
    device = directory.child("device")
    return of_directory(device, links=links - 1) if links and device.exists else None
