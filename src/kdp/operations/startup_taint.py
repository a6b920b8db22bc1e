"""The start-up taint: when it may be removed from the Node, and by which patch. Without I/O.

A node of an autoscaler begins with the taint, so that no pod comes before the plugin. A pod that came as soon as the
resources are registered would find none yet: the kubelet writes them into the Node's status some seconds later. So the
taint stays until the Node names them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..cluster.api import Object
    from ..deviceplugin.status import ResourceStatus


def removal(node: Object, key: str) -> Sequence[Mapping[str, Any]]:
    """Return the JSON patch that removes all taints of this key, and nothing else; empty: there is none.

    Each is tested before it is removed, so the API server refuses the patch if somebody has changed the list meanwhile.
    """
    spec: Object = node.get("spec", {})
    taints: list[Object] = spec.get("taints", [])
    patch: list[Mapping[str, Any]] = []
    for index in reversed([index for index, taint in enumerate(taints) if taint["key"] == key]):
        path = f"/spec/taints/{index}"
        patch += [{"op": "test", "path": path, "value": taints[index]}, {"op": "remove", "path": path}]
    return patch


def missing(node: Object, resources: Mapping[str, ResourceStatus]) -> tuple[str, ...]:
    """Return the resources whose healthy devices the Node does not offer yet."""
    status: Object = node.get("status", {})
    allocatable: Mapping[str, object] = status.get("allocatable", {})
    return tuple(
        name
        for name, resource in resources.items()
        if resource.healthy and str(allocatable.get(name, "0")).strip() in ("", "0")
    )
