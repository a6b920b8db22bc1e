"""A DRA driver's objects in the cluster: service account, permissions, a policy that narrows them, DeviceClass.

The rights are those that `kdp.dra` uses, each with its reason; who adds a request to `kdp.cluster.api.ClusterApi` adds
it here.

RBAC cannot tell one node's slices from another's, so an account that may write its own could write all of them. A pod's
token names the pod's node (from 1.32 on without switching it on), so a ValidatingAdmissionPolicy can: it lets the
account write slices of that node and of this driver only. With it, whoever has broken into one node cannot offer
devices of another one.

Source: DRA contract sections 3.5 and 3.7.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

Document = dict[str, Any]

_RBAC: Final = "rbac.authorization.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io/v1"
_RESOURCES: Final = "resource.k8s.io"

_NODE_NAMED: Final = "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][0].orValue('')"
_SLICE: Final = "(request.operation == 'DELETE' ? oldObject : object)"


@attrs.frozen
class Rule:
    """A right in the cluster.

    Attributes:
        group: The API group; empty: the core.
        resource: The resource.
        verbs: What may be done with it.
        why: What for, in words.
        is_named: Whether it is for the driver's name only.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    is_named: bool = False


@attrs.frozen(kw_only=True)
class Cluster:
    """What a DRA driver is in the cluster.

    Attributes:
        driver: Its name, which is its DeviceClass's as well.
        extended_resource: The extended resource that pods may ask for instead of a claim; None: there is none.
        writes_status: Whether it says in claims how their devices are.
        pool: The pool of devices that are no node's own; None: they are the node's.
        is_controller: Whether it publishes that pool, and serves no kubelet.
    """

    driver: str
    extended_resource: str | None = None
    writes_status: bool = False
    pool: str | None = None
    is_controller: bool = False

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What it may do; the whole of it."""
        of = "node" if self.pool is None else "pool"
        verbs = ("list", "watch", "create", "update", "delete")
        publish = Rule(_RESOURCES, "resourceslices", verbs, f"publish the {of}'s devices")
        if self.is_controller:
            return (publish,)
        read = Rule(_RESOURCES, "resourceclaims", ("get",), "read what a claim was given")
        node = Rule("", "nodes", ("get",), "the slices belong to the node, and vanish with it")
        kept = "its devices from being published" if self.pool is None else "claims from being prepared"
        report = Rule("", "events", ("create",), f"say of the node what keeps {kept}")
        # The slices of a pool are written by its controller.
        rules = (publish, read, node, report) if self.pool is None else (read, report)
        if not self.writes_status:
            return rules
        scope = "associated-node:update" if self.pool is None else "arbitrary-node:update"
        return (
            *rules,
            Rule(_RESOURCES, "resourceclaims/status", ("update",), "say in claims how their devices are"),
            Rule(_RESOURCES, "resourceclaims/driver", (scope,), "the same, from Kubernetes 1.36 on", True),
        )


def cluster_objects(name: str, cluster: Cluster, namespace: str) -> list[Document]:
    """Return what is applied before the DaemonSet, the rights after what narrows them."""
    labels = {"app.kubernetes.io/name": name}

    def document(version: str, kind: str, called: str = name, **rest: Any) -> Document:
        return {"apiVersion": version, "kind": kind, "metadata": {"name": called, "labels": labels}, **rest}

    account: Document = document("v1", "ServiceAccount")
    account["metadata"]["namespace"] = namespace
    account["automountServiceAccountToken"] = False  # for the driver's pods only, which ask for it
    device_class: Document = {"selectors": [{"cel": {"expression": f"device.driver == '{cluster.driver}'"}}]}
    if cluster.extended_resource is not None:
        device_class["extendedResourceName"] = cluster.extended_resource
    policy = [
        document(_ADMISSION, "ValidatingAdmissionPolicy", spec=_policy(name, namespace, cluster)),
        document(
            _ADMISSION, "ValidatingAdmissionPolicyBinding", spec={"policyName": name, "validationActions": ["Deny"]}
        ),
    ]
    writes_slices = cluster.is_controller or cluster.pool is None
    return [
        account,
        *(policy if writes_slices else ()),
        document(
            f"{_RBAC}/v1",
            "ClusterRole",
            rules=[
                {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
                | ({"resourceNames": [cluster.driver]} if rule.is_named else {})
                for rule in cluster.rules
            ],
        ),
        document(
            f"{_RBAC}/v1",
            "ClusterRoleBinding",
            roleRef={"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        ),
        # Where pods can have the devices is where the nodes' drivers are, so the class comes with those.
        *(
            ()
            if cluster.is_controller
            else (document(f"{_RESOURCES}/v1", "DeviceClass", cluster.driver, spec=device_class),)
        ),
    ]


def _policy(name: str, namespace: str, cluster: Cluster) -> Document:
    driver = cluster.driver
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [_RESOURCES],
                    "apiVersions": ["v1"],  # and, by the default matchPolicy, the same objects in other versions
                    "operations": ["CREATE", "UPDATE", "DELETE"],
                    "resources": ["resourceslices"],
                }
            ]
        },
        "matchConditions": [
            {
                "name": "is-this-driver",
                "expression": f"request.userInfo.username == 'system:serviceaccount:{namespace}:{name}'",
            }
        ],
        "variables": [
            {"name": "tokenNode", "expression": _NODE_NAMED},
            {"name": "sliceNode", "expression": f"{_SLICE}.spec.?nodeName.orValue('')"},
            {"name": "sliceDriver", "expression": f"{_SLICE}.spec.driver"},
            {"name": "slicePool", "expression": f"{_SLICE}.spec.pool.name"},
        ],
        "validations": [
            *_of_whose(cluster),
            {
                "expression": f"variables.sliceDriver == '{driver}'",
                "messageExpression": f"'{driver} may not write a slice of the driver ' + variables.sliceDriver",
            },
        ],
    }


def _of_whose(cluster: Cluster) -> list[Document]:
    """Return what is asked of a slice's place: the node of the token, or the controller's pool."""
    if cluster.is_controller:
        return [
            {
                "expression": "variables.sliceNode == ''",
                "messageExpression": "'the controller of a pool may not write a slice of node ' + variables.sliceNode",
            },
            {
                "expression": f"variables.slicePool == '{cluster.pool}'",
                "messageExpression": f"'the controller of pool {cluster.pool} may not write a slice of pool ' + "
                "variables.slicePool",
            },
        ]
    return [
        {
            "expression": "variables.tokenNode != ''",
            "message": "the token names no node; the driver must run in a pod, with the token that the kubelet gave it",
        },
        {
            "expression": "variables.tokenNode == variables.sliceNode",
            "messageExpression": "'a driver on node ' + variables.tokenNode + ' may not write a slice of node ' + "
            "(variables.sliceNode == '' ? 'none' : variables.sliceNode)",
        },
    ]
