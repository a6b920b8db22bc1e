"""From bundles of nodes to what kdp is told: ids, edits, health and memory nodes."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import attrs

import kdp
import kdp.hardware

from .config import Group, PathMember, Resource, UsbMember

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .amdgpu import Partitions
    from .match import Bundle
    from .pattern import Found

    IommuGroups = Callable[[], Mapping[int, kdp.hardware.IommuGroup]]

MAX_ID = 63
"""What kdp and the kubelet's API allow."""

_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9_.:+@-]+")


def expanded(host: kdp.hardware.Host, bundle: Bundle) -> Bundle:
    """Return a bundle with the nodes below each directory in its place, as a container runtime makes them."""
    members: list[tuple[PathMember | UsbMember, Found]] = []
    for member, found in bundle.members:
        if member.is_node and host.is_directory(found.path):
            real = host.resolve(found.path)
            below = [node.removeprefix(real) for node in host.device_nodes() if node.startswith(f"{real}/")]
            members += [(member, attrs.evolve(found, path=f"{found.path}{name}", below=name)) for name in below]
            if below:
                continue
        members.append((member, found))
    return attrs.evolve(bundle, members=tuple(members))


def build(
    host: kdp.hardware.Host,
    resource: Resource,
    group: Group,
    bundle: Bundle,
    taken: Mapping[str, str],
    partitions: Partitions,
    iommu_groups: IommuGroups,
) -> list[kdp.Device]:
    """Return the devices that a bundle makes: one, or ``count`` replicas of it that share a unit.

    Args:
        host: The node's files.
        resource: Their resource.
        group: Their group.
        bundle: What they consist of.
        taken: What of the bundle another device has for itself, a node or an IOMMU group, each with that device.
        partitions: Those of AMD's cards.
        iommu_groups: Returns the node's IOMMU groups, read once for all bundles: each reading looks at all functions.
    """
    card = next((card for _, found in bundle.members if (card := partitions.card_of(found.path)) is not None), None)
    reasons = list(bundle.missing)
    nodes: set[int] = set()
    for member, found in bundle.members:
        if member.is_node:
            vfio = _vfio_group(host, iommu_groups, found.path)
            reason = _no_device(host, found.path) or (vfio and vfio.vfio_fault)
            if reason is not None:
                reasons.append(reason)
            elif card is not None:
                nodes |= set(card.numa_nodes)
            else:
                near = [found.sysfs or found.path] if vfio is None else [each.path for each in vfio.members]
                nodes |= set(host.numa_nodes(*near))
    devices: list[kdp.Device] = []
    values = _values(resource, group, bundle)
    identity = _identity(host, bundle, iommu_groups) if card is None else card.path
    attributes = kdp.hardware.attributes_of({"path": bundle.anchor.path, "resource": resource.name})
    for replica in range(group.count):
        edits = kdp.ContainerEdits()
        broken: list[str] = []
        try:
            edits = _edits(group, bundle, values | {"replica": str(replica)})
        except kdp.InvalidValueError as error:  # what a placeholder filled in is no path: this device only is wrong
            broken.append(str(error))
        id_ = _id(resource, group, bundle.anchor, values, replica)
        shared = [
            f"{thing} belongs to {other} and to {id_!r} of {resource.name}, and only the first is given out; write "
            "shared: true beside the second, or leave the node out of one"
            for thing, other in taken.items()
        ]
        why = "; ".join((*reasons, *broken, *shared))
        devices.append(
            kdp.Device(
                id=id_,
                resource=resource.name,
                health=kdp.Health.unhealthy(why) if why else kdp.Health.healthy(),
                numa_nodes=tuple(nodes),
                edits=edits,
                attributes=attributes,
                unit=bundle.anchor.label if card is None else card.address,
                identity=identity,
            )
        )
    return devices


def _identity(host: kdp.hardware.Host, bundle: Bundle, iommu_groups: IommuGroups) -> str:
    """Return what stays with the nodes that are this device's own. What is optional may come and go, and stays out."""
    own: list[str] = []
    for member, found in bundle.members:
        if member.is_node and member.is_exclusive and not member.optional:
            vfio = _vfio_group(host, iommu_groups, found.path)
            own.append(host.identity(found.sysfs or found.path) if vfio is None else vfio.identity)
    return "; ".join(filter(None, own))


def _no_device(host: kdp.hardware.Host, path: str) -> str | None:
    if host.device_type(path) is not None:
        return None
    if not host.exists(path):
        return f"{path} is gone"
    return f"{path} is a {'directory without device nodes' if host.is_directory(path) else 'file, not a device node'}"


def _vfio_group(host: kdp.hardware.Host, iommu_groups: IommuGroups, path: str) -> kdp.hardware.IommuGroup | None:
    number = host.vfio_group(path)
    return None if number is None else iommu_groups().get(number)


def _values(resource: Resource, group: Group, bundle: Bundle) -> dict[str, str]:
    values = dict.fromkeys(group.captures, "")  # of an optional member that is not there
    for _, found in reversed(bundle.members):  # the first member's value wins, the anchor's in any case
        values |= found.captures
    values |= bundle.anchor.captures
    anchor = bundle.anchor.path
    return values | {
        "path": anchor,
        "name": anchor.rpartition("/")[2],
        "node": bundle.anchor.label,
        "resource": resource.name.rpartition("/")[2],
    }


def _edits(group: Group, bundle: Bundle, values: Mapping[str, str]) -> kdp.ContainerEdits:
    nodes: dict[str, kdp.DeviceNode] = {}
    mounts: dict[str, kdp.Mount] = {}
    for member, found in bundle.members:
        place: str
        container_path = _container_path(member, found, values)
        if isinstance(member, PathMember) and member.type == "Condition":
            continue
        if isinstance(member, PathMember) and member.type == "Mount":
            mount = kdp.Mount(host_path=found.path, container_path=container_path, read_only=member.read_only)
            place, taken = mount.container_path, mounts.setdefault(mount.container_path, mount) != mount
        else:
            node = kdp.DeviceNode(host_path=found.path, container_path=container_path, permissions=member.permissions)
            place, taken = node.container_path, nodes.setdefault(node.container_path, node) != node
        if taken or (place in nodes and place in mounts):
            raise kdp.InvalidValueError(f"two members want the container's {place!r}; give one another mountPath")
    return kdp.ContainerEdits(
        env={name: template.fill(values) for name, template in group.env.items()},
        device_nodes=nodes.values(),
        mounts=mounts.values(),
        annotations={name: template.fill(values) for name, template in group.annotations.items()},
    )


def _container_path(member: PathMember | UsbMember, found: Found, values: Mapping[str, str]) -> str:
    if member.mount_path is None:
        return found.path
    path = found.path.removesuffix(found.below)
    own = {"path": path, "name": path.rpartition("/")[2], "node": found.label}
    return member.mount_path.fill({**values, **found.captures, **own}) + found.below


def _id(resource: Resource, group: Group, anchor: Found, values: Mapping[str, str], replica: int) -> str:
    number = str(replica)
    if group.id is not None:
        text = group.id.fill({**values, "replica": number})
        numbered = group.count > 1 and "replica" not in group.id.fields
    else:
        # An id must be unique in the process, and two resources may have the same node.
        name = values["resource"]
        text = anchor.label if anchor.label.startswith(name) else f"{name}-{anchor.label}"
        numbered = group.count > 1
    text = _NOT_IN_AN_ID.sub("_", f"{text}-{number}" if numbered else text) or "_"
    if len(text) <= MAX_ID:
        return text
    return f"{text[: MAX_ID - 11]}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
