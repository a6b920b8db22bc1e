"""A device's `kdp.ContainerEdits` as its part of a CDI spec."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import attrs

from ..errors import InvalidValueError
from .model import CdiDevice, CdiEdits, CdiMount, CdiNode
from .names import cdi_device_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..hardware import Host
    from ..model.devices import Device
    from ..model.edits import ContainerEdits, Mount


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
