"""A resource and its devices in the words of CDI: kind and names, and a device's `kdp.ContainerEdits`.

CDI allows less than the kubelet: a class must start with a letter, a device must start and end with a letter or digit
and holds only letters, digits and ``_ - . :``. What is allowed stays as it is; the rest is escaped. Two
resources never share a kind, nor two ids a name.

=================================== ===================================
kdp                                 CDI
=================================== ===================================
resource ``example.com/widget``     kind ``kdp.example.com/widget``
resource ``example.com/mig-1g.5gb`` kind ``kdp.example.com/mig-1g_5gb``
resource ``example.com/w_x``        kind ``kdp.example.com/w_x-5b4ce595``
device ``0000:3b:00.0``             device ``0000:3b:00.0``
device ``mlx5_0/3``                 device ``x_mlx5_5f0_2f3``
=================================== ===================================
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from typing import TYPE_CHECKING

import attrs

from ..errors import InvalidValueError
from ..model.names import check_cdi_device_name, check_resource_name
from .model import CdiDevice, CdiEdits, CdiMount, CdiNode

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..hardware import Host
    from ..model.devices import Device
    from ..model.edits import ContainerEdits, Mount

_PLAIN = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:]*[A-Za-z0-9])?\Z")
_ESCAPED = "x_"
_DIGEST_LENGTH = 8
_DIGESTED = re.compile(rf"-[0-9a-f]{{{_DIGEST_LENGTH}}}\Z")


def cdi_kind(resource: str) -> str:
    """Return the CDI kind under which the devices of a resource are found. No other resource has it.

    The vendor part is the resource's domain behind ``kdp.``, so that it is not taken for a spec of the vendor's own
    tools (two specs of one kind with one name hide each other). Dots of the name become ``_``: with a dot in its class
    a spec needs version 0.6.0, which podman 4 refuses. A digit at the front gets an ``x``.

    A name that this does not lead back to has a digest of itself at the end: ``w_x``, since ``w.x`` becomes that, and
    ``x4k``, since ``4k`` does. So has one that was changed and looks as if it had a digest already.

    Raises:
        InvalidNameError: It is no name of a resource.
    """
    domain, _, name = check_resource_name(resource).partition("/")
    found = name.replace(".", "_")
    if found[0].isdigit():
        found = f"x{found}"
    if _name_of(found) != name or (found != name and _DIGESTED.search(found)):
        found += f"-{hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]}"
    return f"kdp.{domain}/{found}"


def _name_of(class_: str) -> str:
    """Return the name of the resource that has this class without a digest."""
    name = class_.replace("_", ".")
    return name[1:] if name[0] == "x" and name[1:2].isdigit() else name


def cdi_device_name(device_id: str) -> str:
    """Return a device id as the device part of a CDI name: itself where that is allowed, else escaped."""
    if _PLAIN.match(device_id) and not device_id.startswith(_ESCAPED):
        return device_id
    return _ESCAPED + "".join(
        chr(byte) if chr(byte).isascii() and chr(byte).isalnum() else f"_{byte:02x}" for byte in device_id.encode()
    )


def qualified(kind: str, device: str) -> str:
    """Return ``vendor/class=device``, checked by `check_cdi_device_name`."""
    return check_cdi_device_name(f"{kind}={device}")


# -- edits -------------------------------------------------------------------------------------------------------------


def render_device(device: Device, host: Host, *, without_env: Collection[str] = ()) -> CdiDevice | None:
    """Return the device's part of a spec; None if it adds nothing to a container. Blocks for a stat(2) a node.

    A node is named by what its link leads to, since runtimes refuse links, and keeps its mode and owner, which a
    runtime would make 0666 and root's. The node's numbers are left out: with them a runtime would make a dead node of
    one that is gone. A node that is not there now is written as declared; the runtime's error names it.

    Args:
        device: What to render. Its annotations have no place in a spec.
        host: The node's files.
        without_env: Variables that several devices of a container join, so that none may set its own.
    """
    return device_of(device, render_edits(device.edits, host, without_env=without_env))


def device_of(device: Device, rendered: CdiEdits) -> CdiDevice | None:
    """Return the device's part of a spec, its edits rendered; None if they add nothing to a container."""
    return CdiDevice(name=cdi_device_name(device.id), edits=rendered) if rendered else None


def render_edits(edits: ContainerEdits, host: Host, *, without_env: Collection[str] = ()) -> CdiEdits:
    """Return edits as a spec has them now; see `render_device`. Blocks for a stat(2) a node."""
    return resolved(declared(edits, without_env=without_env), host)


def declared(edits: ContainerEdits, *, without_env: Collection[str] = ()) -> CdiEdits:
    """Return edits as a spec has them, but with the nodes as they were declared, which may be links."""
    return CdiEdits(
        env=[f"{name}={text}" for name, text in edits.env.items() if name not in without_env],
        device_nodes=[
            CdiNode(path=node.container_path, host_path=node.host_path, permissions=node.permissions)
            for node in edits.device_nodes
        ],
        mounts=[_mount(mount) for mount in edits.mounts],
        hooks=edits.hooks,
    )


def resolved(edits: CdiEdits, host: Host) -> CdiEdits:
    """Return edits with each node as it is now. Blocks for a stat(2) a node."""
    return attrs.evolve(edits, device_nodes=[_node(node, host) for node in edits.device_nodes])


def _node(node: CdiNode, host: Host) -> CdiNode:
    try:
        path = host.device_node(node.host_path or node.path)
        found = os.stat(host.path(path))
    except (InvalidValueError, OSError):
        return node
    return attrs.evolve(
        node,
        host_path=path,
        file_mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid or None,
        gid=found.st_gid or None,
    )


def _mount(mount: Mount) -> CdiMount:
    # As containerd mounts what Allocate's reply names; without "rbind" and "rprivate" submounts would differ.
    access = "ro" if mount.read_only else "rw"
    return CdiMount(
        host_path=mount.host_path, container_path=mount.container_path, options=("rbind", "rprivate", access)
    )
