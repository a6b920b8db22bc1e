"""Objects of a cluster as its API server has them, and a node that is in order."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from kdp.admin.doctor.outside.facts import Listed, NodeFacts, Said

NOW = 1_800_000_000.0
NODE = "node-0"
RESOURCE = "example.com/w"
DRIVER = "w.example.com"


def moment(seconds_ago: float) -> str:
    return datetime.fromtimestamp(NOW - seconds_ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(*, status: str = "True", taints: Any = (), capacity: Any = None, allocatable: Any = None, **spec: Any) -> Any:
    amounts = {RESOURCE: "2"} if capacity is None else capacity
    condition = {"type": "Ready", "status": status, "reason": "R\x1b", "message": "words"}
    fields: Any = {"f:status": {"f:capacity": {f"f:{name}": {} for name in amounts}}}
    return {
        "metadata": {
            "name": NODE,
            "uid": "u",
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": fields}],
        },
        "spec": {"taints": [*taints], **spec},
        "status": {
            "capacity": amounts,
            "allocatable": amounts if allocatable is None else allocatable,
            "conditions": [{**condition, "lastTransitionTime": moment(100)}],
        },
    }


def plugin(
    name: str = "p-1",
    *,
    is_ready: bool = True,
    image: str = "w:1",
    container: Any = None,
    state: Any = None,
    paths: Any = ("/var/lib/kubelet/device-plugins",),
    **more: Any,
) -> Any:
    condition = {"type": "Ready", "status": str(is_ready), "lastTransitionTime": moment(300)}
    return {
        "metadata": {"name": name, "namespace": "kube-system", "ownerReferences": [{"kind": "DaemonSet", "name": "p"}]},
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "main", "image": image, "command": ["kdp"], **(container or {})}],
            "volumes": [{"hostPath": {"path": path}} for path in paths],
        },
        "status": {
            "phase": "Running",
            "conditions": [condition],
            "containerStatuses": [{"name": "main", "state": {"running": {}}, **(state or {})}],
            **more,
        },
    }


def driver(**more: Any) -> Any:
    paths = ("/var/lib/kubelet/plugins_registry", f"/var/lib/kubelet/plugins/{DRIVER}")
    return plugin("d-1", paths=paths, **more)


def daemonset(*, wanted: int = 1, made: int = 1, selector: Any = None) -> Any:
    spec = {**plugin()["spec"], "nodeSelector": selector or {}}
    return {
        "metadata": {"name": "p", "namespace": "kube-system", "uid": "d", "generation": 2},
        "spec": {"template": {"spec": spec}},
        "status": {"observedGeneration": 2, "desiredNumberScheduled": wanted, "currentNumberScheduled": made},
    }


def deleted(seconds_ago: float, **more: Any) -> Any:
    """Return a pod that should have ended so long ago, with a device of the driver by a claim."""
    pod = user(spec={"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}, **more)
    pod["metadata"]["deletionTimestamp"] = moment(seconds_ago)
    return pod


def user(name: str = "user", *, count: int = 1, resource: str = RESOURCE, spec: Any = None, **status: Any) -> Any:
    container = {"name": "main", "resources": {"limits": {resource: str(count)}}}
    return {
        "metadata": {"name": name, "namespace": "n", "creationTimestamp": moment(30)},
        "spec": {"nodeName": NODE, "containers": [container], **(spec or {})},
        "status": {"phase": "Running", **status},
    }


def published(*devices: Any, count: int = 1, generation: int = 1) -> Any:
    pool = {"name": NODE, "generation": generation, "resourceSliceCount": count}
    return {"spec": {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": [*devices]}}


def lease(seconds_ago: float) -> Any:
    return {"metadata": {"name": NODE}, "spec": {"renewTime": moment(seconds_ago)}}


def refused(what: str = "list pods", right: str = "'list' on 'pods'") -> Listed:
    problem = f"{what}: the API server answered 403 Forbidden: no; a role must grant the verb {right}"
    return Listed(problem=problem, status=403)


def facts(**more: Any) -> NodeFacts:
    """Return a node in order with its plugin; lists are given as sequences."""
    given: dict[str, Any] = {
        "node": [node()],
        "offered": [{"metadata": {"name": NODE}, "status": {"capacity": {RESOURCE: "2"}}}],
        "daemonsets": [daemonset()],
        "leases": [lease(5)],
        "pods": [plugin()],
        "siblings": {"kube-system": [plugin()]},
        "answers": {"kube-system/p-1": Said("ok", 200)},
    } | more

    def listed(value: Any) -> Any:
        return Listed(tuple(value)) if isinstance(value, list | tuple) else value

    siblings = {name: listed(each) for name, each in given.pop("siblings").items()}
    return NodeFacts(name=NODE, now=NOW, siblings=siblings, **{name: listed(each) for name, each in given.items()})
