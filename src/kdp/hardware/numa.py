"""Which memory nodes a thing is near to, however many steps its hardware is away.

The ways, in this order; the first that knows answers:

1. the nearest directory, from the device up to its bus, that names a node: PCI functions, and whatever is below one
   (auxiliary bus, InfiniBand, FPGA regions, DRM). A function may say -1 where its bridge knows better, so the way goes
   on.
2. the link ``device`` of a class entry that does not lie below its device.
3. the IOMMU group of a VFIO node (``/dev/vfio/17``): the functions in it.
4. the network interface that it is made on: soft-RoCE's ``parent``, and of a virtual interface (macvtap, VLAN, bond)
   those below it.

Rule: all or none. Where a thing has several parts and one of them is unknown the answer is "unknown": half an answer
would send the pod to the wrong side. What is unknown, `Directory.numa_node` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .iommu import read_groups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .directory import Directory, NodeFiles


def of_paths(host: NodeFiles, paths: Iterable[str]) -> tuple[int, ...]:
    """See `kdp.hardware.Host.numa_nodes`."""
    found = (host.directory(path) if host.is_directory(path) else host.directory_of_node(path) for path in paths)
    return _all_or_none(of_directory(directory) if directory else () for directory in found)


def _all_or_none(parts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    found = tuple(parts)
    return tuple(sorted({node for part in found for node in part})) if all(found) else ()


def of_directory(directory: Directory, seen: frozenset[str] = frozenset()) -> tuple[int, ...]:
    """See `kdp.hardware.Directory.numa_nodes`; ``seen`` are those on the way to this one."""
    if directory.path in seen:  # interfaces may be stacked in a circle
        return ()
    seen |= {directory.path}
    for place in (directory, *directory.parents):
        if (node := place.numa_node) is not None:
            return (node,)
    device = directory.child("device")
    return (
        (of_directory(device, seen) if device.exists else ())
        or _of_vfio_group(directory, seen)
        or _of_interfaces(directory, seen)
    )


def _of_vfio_group(directory: Directory, seen: frozenset[str]) -> tuple[int, ...]:
    if not directory.name.isdigit() or not directory.path.startswith("/sys/devices/virtual/vfio/"):
        return ()
    group = read_groups(directory.host).get(int(directory.name))
    return _all_or_none(of_directory(member, seen) for member in group.members) if group is not None else ()


def _of_interfaces(directory: Directory, seen: frozenset[str]) -> tuple[int, ...]:
    host = directory.host
    parent = directory.text("parent").value
    if parent and "/" not in parent:  # soft-RoCE and soft-iWARP
        below = [parent]
    else:
        # A macvtap's class entry lies below its interface: .../net/macvtap0/macvtap/tap7.
        place = next((p for p in (directory, *directory.parents) if p.path.startswith(_VIRTUAL_NET)), directory)
        while place.path.startswith(_VIRTUAL_NET) and "/" in place.path.removeprefix(_VIRTUAL_NET):
            place = place.parent or place
        if not place.path.startswith(_VIRTUAL_NET):
            return ()
        below = [entry.rpartition("/lower_")[2] for entry in host.glob(f"{host.escape(place.path)}/lower_*")]
    interfaces = [host.directory(f"/sys/class/net/{name}") for name in below]
    return _all_or_none(of_directory(interface, seen) if interface.exists else () for interface in interfaces)


_VIRTUAL_NET = "/sys/devices/virtual/net/"
