"""Things: the hardware that a container reaches by a device node. Two nodes with one thing in common are one device.

The kernel identifies a node by its kind and number, as ``c 188:0``. A second node with the same number, and a link, are
other names of the same hardware.

VFIO gives all functions of an IOMMU group to the process that has one of them, so the group is one thing, too. A
program opens the group (``/dev/vfio/41``, or ``/dev/vfio/noiommu-41`` without an IOMMU), or with IOMMUFD one function
of it (``/dev/vfio/devices/vfio0``). Source: the kernel's Documentation/driver-api/vfio.rst, "Groups, Devices, and
IOMMUs" and "IOMMUFD and vfio_iommu_type1".
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .directory import NodeFiles

GROUP: Final = "IOMMU group "
"""The beginning of the things that are isolation groups."""

_VFIO: Final = "/dev/vfio/"
_GROUP_NODE: Final = re.compile(r"/dev/vfio/(?:noiommu-)?(\d+)")


def of_node(host: NodeFiles, path: str) -> tuple[str, ...]:
    """See `kdp.hardware.Host.things_of_node`."""
    found = host.look(path)
    if found is None or not (stat.S_ISCHR(found[0]) or stat.S_ISBLK(found[0])):
        return ()
    kind = "c" if stat.S_ISCHR(found[0]) else "b"
    number = f"{kind} {os.major(found[1])}:{os.minor(found[1])}"
    group = vfio_group(host, path)
    return (number,) if group is None else (number, f"{GROUP}{group}")


def vfio_group(host: NodeFiles, path: str) -> int | None:
    """See `kdp.hardware.Host.vfio_group`."""
    if not path.startswith(_VFIO):
        if host.read_link(path) is None:
            return None
        try:
            path = host.resolve(path)
        except OSError:  # a loop of links
            return None
    if (match := _GROUP_NODE.fullmatch(path)) is not None:
        return int(match[1])
    directory = host.directory_of_node(path) if path.startswith(_VFIO) else None
    function = None if directory is None else directory.pci
    return None if function is None else function.iommu_group
