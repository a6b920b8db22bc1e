"""What stays with the hardware behind a device node when the node's number changes.

``ttyUSB0``, ``video0``, ``uverbs0``, and ``vfio/41`` are given in the order of coming: after a reset of a hub or a
reload of a driver they may be other hardware's. The ways, the first that knows answers:

1. a node that is named by a link, as those in ``/dev/serial/by-id``: its name says what stays, and nothing else is
   needed.
2. a USB device: its serial number, or its port where it has none or shares it with another that is plugged in. Cheap
   adapters of one kind often have one serial number. The numbers of vendor and product change when a device loads its
   firmware.
3. a VFIO group: the functions in it.
4. the PCI function that it is part of, by its path in sysfs.

Rule: only what is certain. Names of platform devices may have numbers of that kind themselves, so they are not used.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .iommu import read_groups

if TYPE_CHECKING:
    from .directory import Directory, NodeFiles

_USB = re.compile(r"/usb\d+/")
_VFIO = re.compile(r"/sys/devices/virtual/vfio/(\d+)")


def of_path(host: NodeFiles, path: str) -> str:
    """See `kdp.hardware.Host.identity`."""
    if host.is_directory(path):
        directory: Directory | None = host.directory(path)
    else:
        directory = host.directory_of_node(path) if host.read_link(path) is None else None
    if directory is None:
        return ""
    if (usb := _usb_device(directory)) is not None:
        return _of_usb(usb)
    if (group := _VFIO.fullmatch(directory.path)) is not None:
        found = read_groups(host).get(int(group[1]))
        return "" if found is None else found.identity
    function = directory.pci
    return "" if function is None else function.path


def _usb_device(directory: Directory) -> Directory | None:
    """Return the USB device that a directory is, or is part of; its interfaces have no number on the bus."""
    places = (directory, *directory.parents) if _USB.search(directory.path) else ()
    return next((place for place in places if place.integer("devnum").value is not None), None)


def _of_usb(device: Directory) -> str:
    named = _named(device)
    others = device.host.directories("/sys/bus/usb/devices/*") if named else ()
    is_shared = any(other.path != device.path and _named(other) == named for other in others)
    return device.path if is_shared or not named else named


def _named(device: Directory) -> str:
    serial = device.text("serial").value
    return f"USB {device.text('idVendor').or_else('')} serial {serial}" if serial else ""
