"""IOMMU groups: which functions VFIO hands out together, and whether it hands them out at all.

The group is the unit of isolation: functions of one group can reach each other's memory, so one ``/dev/vfio/N`` stands
for all of them, and VFIO opens a group only if none of them is in use by a driver of the host. The rule is that of the
kernel's Documentation/driver-api/vfio.rst ("Groups, Devices, and IOMMUs") and of ``vfio_dev_viable`` in
drivers/vfio/vfio.c up to Linux 5.18; since then drivers say it of themselves (``driver_managed_dma``): the drivers of
VFIO, ``pci-stub``, and ``pcieport``.

The members are told by the links of the PCI functions: ``/sys/kernel``, where the groups are, is not mounted in pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from .directory import PciFunction
from .pci import DEVICES

if TYPE_CHECKING:
    from .directory import NodeFiles

_HARMLESS = ("pci-stub", "pcieport")
"""Drivers that do no DMA of their own."""


@final
@attrs.frozen(kw_only=True)
class IommuGroup:
    """An IOMMU group.

    Attributes:
        number: Its number, as in ``/dev/vfio/17``.
        members: The PCI functions in it, by address.
    """

    number: int
    members: tuple[PciFunction, ...]

    @property
    def identity(self) -> str:
        """What stays with the group when its number changes: the addresses of its members."""
        return " ".join(member.address for member in self.members)

    @property
    def vfio_fault(self) -> str | None:
        """Why VFIO gives the group to nobody, as a sentence with the function and the driver; None: it does."""
        in_the_way = [
            f"{member.address} is bound to {driver}"
            for member in self.members
            if (driver := member.driver) is not None and not member.is_vfio and driver not in _HARMLESS
        ]
        if not in_the_way:
            return None
        return (
            f"VFIO does not open IOMMU group {self.number}, because {' and '.join(in_the_way)}; bind all functions of "
            "the group to vfio-pci"
        )


def read_groups(host: NodeFiles) -> dict[int, IommuGroup]:
    """See `kdp.hardware.Host.iommu_groups`."""
    members: dict[int, list[PciFunction]] = {}
    for entry in host.directories(f"{DEVICES}/*"):
        function = PciFunction(host, entry.path)
        if (number := function.iommu_group) is not None:
            members.setdefault(number, []).append(function)
    return {
        number: IommuGroup(number=number, members=tuple(sorted(held, key=lambda function: function.address)))
        for number, held in sorted(members.items())
    }
