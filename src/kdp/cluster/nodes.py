"""Lists that an administrator's commands ask of the API server about nodes, and what a Node object says.

Lists come in pages: a cluster of 500 nodes has pods of more than 100 MB as JSON. A caller takes from a page what it
needs and drops it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

    from .api import Object
    from .client import KubeApi

KUBELET: Final = "kubelet"
"""The name under which kubelets own fields."""


def nodes(api: KubeApi, labels: str = "") -> AsyncGenerator[Object, None]:
    """Yield the nodes that a label selector means."""
    return _each(api, "/api/v1/nodes", "list nodes", labels=labels)


def running_pods(api: KubeApi, node: str | None = None) -> AsyncGenerator[Object, None]:
    """Yield the pods that are on a node, or on this one, and have not ended."""
    place = "spec.nodeName!=" if node is None else f"spec.nodeName={node}"
    unfinished = f"{place},status.phase!=Succeeded,status.phase!=Failed"
    return _each(api, "/api/v1/pods", "list pods", unfinished)


def pods_of(api: KubeApi, node: str) -> AsyncGenerator[Object, None]:
    """Yield all pods of a node, also those that have ended."""
    return _each(api, "/api/v1/pods", "list pods", f"spec.nodeName={node}")


def waiting_pods(api: KubeApi) -> AsyncGenerator[Object, None]:
    """Yield the pods that have no node yet."""
    return _each(api, "/api/v1/pods", "list pods", "spec.nodeName=,status.phase=Pending")


def pods_in(api: KubeApi, namespace: str) -> AsyncGenerator[Object, None]:
    """Yield the pods of a namespace."""
    return _each(api, f"/api/v1/namespaces/{namespace}/pods", "list pods")


def resource_slices(api: KubeApi, node: str | None = None) -> AsyncGenerator[Object, None]:
    """Yield the ResourceSlices of all drivers: of one node, or all."""
    selector = "" if node is None else f"spec.nodeName={node}"
    return _each(api, "/apis/resource.k8s.io/v1/resourceslices", "list resourceslices", selector)


def slices_of(api: KubeApi, driver: str) -> AsyncGenerator[Object, None]:
    """Yield the ResourceSlices of a driver."""
    path = "/apis/resource.k8s.io/v1/resourceslices"
    return _each(api, path, "list resourceslices", f"spec.driver={driver}")


async def _each(
    api: KubeApi, path: str, what: str, selector: str = "", *, labels: str = ""
) -> AsyncGenerator[Object, None]:
    async for page in api.pages(path, what, selector, labels):
        for item in page:
            yield item


def part(item: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """Return the object at a path, as ``"status", "capacity"``; an empty one where there is none."""
    found: Any = item
    for name in path:
        found = cast("Mapping[str, Any]", found).get(name) if isinstance(found, dict) else None
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def items(item: Mapping[str, Any], *path: str) -> Sequence[Mapping[str, Any]]:
    """Return the list of objects at a path; an empty one where there is none."""
    found: Any = part(item, *path[:-1]).get(path[-1])
    return cast("Sequence[Mapping[str, Any]]", found) if isinstance(found, list) else ()


def is_ready(item: Mapping[str, Any]) -> bool:
    """Return whether a Node or a Pod is Ready."""
    conditions = items(item, "status", "conditions")
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def mounts(pod: Mapping[str, Any], ends: str | tuple[str, ...]) -> bool:
    """Return whether a pod mounts a directory of its node whose path ends so."""
    paths: list[str] = [part(each, "hostPath").get("path") or "" for each in items(pod, "spec", "volumes")]
    return any(path.rstrip("/").endswith(ends) for path in paths)


def taint_removal(node: Object, key: str) -> Sequence[Mapping[str, Any]]:
    """Return the JSON patch that removes all taints of this key, and nothing else; empty: there is none.

    Each is tested before it is removed, so the API server refuses the patch if somebody has changed the list meanwhile.
    """
    taints = items(node, "spec", "taints")
    patch: list[Mapping[str, Any]] = []
    for index in reversed([index for index, taint in enumerate(taints) if taint["key"] == key]):
        path = f"/spec/taints/{index}"
        patch += [{"op": "test", "path": path, "value": taints[index]}, {"op": "remove", "path": path}]
    return patch


def owners(item: Mapping[str, Any], *path: str) -> list[str]:
    """Return the names of the managers that own a field, by ``metadata.managedFields``; none: nobody knows.

    Args:
        item: The object.
        *path: The field, as ``"status", "capacity", "example.com/widget"``.
    """
    return [
        each.get("manager", "")
        for each in items(item, "metadata", "managedFields")
        if f"f:{path[-1]}" in part(each, "fieldsV1", *(f"f:{name}" for name in path[:-1]))
    ]


def owned(item: Mapping[str, Any], manager: str, *path: str) -> Iterator[str]:
    """Yield the names of the fields below a path that a manager has applied."""
    for each in items(item, "metadata", "managedFields"):
        if each.get("manager") == manager and each.get("operation") == "Apply":
            for name in part(each, "fieldsV1", *(f"f:{name}" for name in path)):
                if name.startswith("f:"):
                    yield name.removeprefix("f:")
