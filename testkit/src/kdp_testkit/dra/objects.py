"""Objects of the API as tests need them: claims with the scheduler's work done, nodes, slices.

A simulated API server has no scheduler and no controllers: what they would write, a test writes with these.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from .pods import DraPod

Object = dict[str, Any]

NODES: Final = "/api/v1/nodes"
SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"


def claims(name: str = "", *, namespace: str = "default") -> str:
    """Return the path of a ResourceClaim; "": of all in the namespace."""
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    return f"{path}/{name}" if name else path


def node(name: str = "node0") -> Object:
    """Return a Node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": {}, "capacity": {}},
    }


def claim(name: str, *, namespace: str = "default", requests: Iterable[str] = ("r0",), cls: str = "devices") -> Object:
    """Return a ResourceClaim that asks for one device of a class with each request."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": each, "exactly": {"deviceClassName": cls}} for each in requests]}},
    }


def result(driver: str, device: str, *, request: str = "r0", pool: str = "node0", **more: Any) -> Object:
    """Return one device of an allocation."""
    return {"request": request, "driver": driver, "pool": pool, "device": device, **more}


def allocation(
    results: Iterable[Mapping[str, Any]], *, config: Iterable[Mapping[str, Any]] = (), node: str | None = "node0"
) -> Object:
    """Return what the scheduler writes as ``status.allocation``.

    Args:
        results: The devices.
        config: Those of the class first, then those of the claim.
        node: The node that the devices are of; None: they are not of one.
    """
    devices: Object = {"results": [dict(each) for each in results]}
    if config:
        devices["config"] = [dict(each) for each in config]
    allocated: Object = {"devices": devices}
    if node is not None:
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        allocated["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return allocated


async def allocated_claim(
    ask: Callable[..., Awaitable[Object]],
    name: str,
    results: Sequence[Mapping[str, Any]],
    *,
    config: Iterable[Mapping[str, Any]] = (),
    pods: Iterable[DraPod] = (),
    node: str | None = "node0",
) -> Object:
    """Make a claim in the namespace ``default`` to which the scheduler has allocated these results, and return it."""
    counts = Counter(each["request"].partition("/")[0] for each in results)
    made = claim(name, requests=counts)
    for request in made["spec"]["devices"]["requests"]:
        request["exactly"]["count"] = counts[request["name"]]
    made = await ask("POST", claims(), made)
    made["status"] = {"allocation": allocation(results, config=config, node=node), "reservedFor": reserved(*pods)}
    await ask("PUT", f"{claims(name)}/status", made)
    return made


def reserved(*pods: DraPod) -> list[Object]:
    """Return what the scheduler writes as ``status.reservedFor``."""
    return [{"resource": "pods", "name": pod.name, "uid": pod.uid} for pod in pods]
