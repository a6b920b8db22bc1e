"""IOMMU groups: which functions VFIO hands out together, and whether it hands them out at all.

The group is the unit of isolation: functions of one group can reach each other's memory, so one ``/dev/vfio/N`` stands
for all of them, and VFIO opens a group only if none of them is in use by a driver of the host. The rule is that of the
kernel's Documentation/driver-api/vfio.rst ("Groups, Devices, and IOMMUs") and of ``vfio_dev_viable`` in
drivers/vfio/vfio.c up to Linux 5.18; since then drivers say it of themselves (``driver_managed_dma``): the drivers of
VFIO, ``pci-stub``, and ``pcieport``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from .directory import Directory
from .pci import is_vfio_driver

if TYPE_CHECKING:
    from .directory import NodeFiles

GROUPS: Final = "/sys/kernel/iommu_groups"

_HARMLESS = ("pci-stub", "pcieport")
"""Drivers that do no DMA of their own."""


def iommu_group(host: NodeFiles, number: int) -> IommuGroup:
    """See `kdp.hardware.Host.iommu_group`."""
    return IommuGroup(host, host.directory(f"{GROUPS}/{number}").path)


@final
@attrs.frozen
class IommuGroup(Directory):
    """An IOMMU group. Make one with `Host.iommu_group`."""

    @property
    def members(self) -> list[Directory]:
        """The devices in it, by address; of a PCI function the name is the address."""
        return self.children("devices/*")

    @property
    def vfio_fault(self) -> str | None:
        """Why VFIO gives the group to nobody, as a sentence with the function and the driver; None: it does."""
        in_the_way = [
            f"{member.name} is bound to {driver}"
            for member in self.members
            if (driver := member.driver) is not None and not is_vfio_driver(driver) and driver not in _HARMLESS
        ]
        if not in_the_way:
            return None
        return (
            f"VFIO does not open IOMMU group {self.name}, because {' and '.join(in_the_way)}; bind all functions of the "
            "group to vfio-pci"
        )
