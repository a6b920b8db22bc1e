"""A device plugin's account in the cluster: only for what its settings have it do there, and with no more rights.

Each right has its reason; who adds a request to `kdp.cluster.node_api.NodeApi` adds it here.

RBAC cannot tell one node from another, so policies narrow what it grants. A pod's token names the pod's node (from 1.32
on without switching it on). An account may write Events of its own only, and of its own Node only the taint that it is
to remove. Which pods it may evict no policy can say: the request does not name the pod's node.
"""

from __future__ import annotations

from typing import Final

import attrs

from ..cluster.event_objects import COMPONENT
from .rights import NODE_NAMED, READS_LABELS, Document, PolicyRule, account_objects

_CORE: Final = ""


@attrs.frozen(kw_only=True)
class Account:
    """What a device plugin does in the cluster.

    Attributes:
        events: Whether it writes Events.
        evicts: Whether it evicts pods.
        startup_taint: The taint that it removes from its Node; None: none.
        reads_labels: Whether a label of its node names its configuration.
    """

    events: bool = False
    evicts: bool = False
    startup_taint: str | None = None
    reads_labels: bool = False

    @property
    def rules(self) -> tuple[PolicyRule, ...]:
        """What it may do; the whole of it."""
        rules: list[PolicyRule] = []
        if self.events:
            rules.append(
                PolicyRule(_CORE, "events", ("create", "patch"), "report on the node and on pods what happens")
            )
        if self.events or self.evicts:
            why = "find the pod's UID" if not self.evicts else "look at a pod before it is evicted"
            rules.append(PolicyRule(_CORE, "pods", ("get",), why))
        if self.evicts:
            rules.append(PolicyRule(_CORE, "pods/eviction", ("create",), "evict pods that hold a failed device"))
        if self.startup_taint is not None:
            rules.append(PolicyRule(_CORE, "nodes", ("get", "patch"), f"remove the taint {self.startup_taint}"))
        elif self.evicts:
            rules.append(PolicyRule(_CORE, "nodes", ("get",), "evict only while the node is Ready"))
        elif self.reads_labels:
            rules.append(READS_LABELS)
        return tuple(rules)


def plugin_objects(name: str, account: Account, namespace: str) -> list[Document]:
    """Return what is applied before the DaemonSet, the rights after what narrows them."""
    policies: list[tuple[str, Document]] = []
    if account.events:
        policies.append((f"{name}-events", _events_policy(name, namespace)))
    if account.startup_taint is not None:
        policies.append((f"{name}-node", _node_policy(name, namespace, account.startup_taint)))
    return account_objects(name, namespace, account.rules, policies)


def _matching(name: str, namespace: str, resource: str, operations: list[str]) -> Document:
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [_CORE],
                    "apiVersions": ["v1"],  # and, by the default matchPolicy, the same objects in other groups
                    "operations": operations,
                    "resources": [resource],
                }
            ]
        },
        "matchConditions": [
            {
                "name": "is-this-plugin",
                "expression": f"request.userInfo.username == 'system:serviceaccount:{namespace}:{name}'",
            }
        ],
        "variables": [{"name": "tokenNode", "expression": NODE_NAMED}],
    }


def _events_policy(name: str, namespace: str) -> Document:
    is_own = f"{{}}.reportingComponent == '{COMPONENT}' && {{}}.reportingInstance == variables.tokenNode"
    return _matching(name, namespace, "events", ["CREATE", "UPDATE"]) | {
        "validations": [
            {
                "expression": is_own.format("object", "object"),
                "message": "a device plugin may write Events of kdp on its own node only",
            },
            {
                "expression": f"oldObject == null || ({is_own.format('oldObject', 'oldObject')})",
                "message": "a device plugin may change its own Events only",
            },
        ]
    }


def _node_policy(name: str, namespace: str, key: str) -> Document:
    def same(field: str, nothing: str) -> str:
        return f"object.{field}.orValue({nothing}) == oldObject.{field}.orValue({nothing})"

    fields = [
        same("metadata.?labels", "{}"),
        same("metadata.?annotations", "{}"),
        same("metadata.?finalizers", "[]"),
        same("spec.?unschedulable", "false"),
        same("spec.?podCIDR", "''"),
        same("spec.?providerID", "''"),
    ]
    taints, before = "object.spec.?taints.orValue([])", "oldObject.spec.?taints.orValue([])"
    return _matching(name, namespace, "nodes", ["UPDATE"]) | {
        "validations": [
            {
                "expression": "object.metadata.name == variables.tokenNode",
                "messageExpression": "'a device plugin on node ' + variables.tokenNode + ' may not change node ' + "
                "object.metadata.name",
            },
            {
                "expression": f"{taints}.all(t, t in {before}) && {before}.all(t, t.key == '{key}' || t in {taints})",
                "message": f"a device plugin may remove the taint {key} only",
            },
            {"expression": " && ".join(fields), "message": "a device plugin may change nothing else of its node"},
        ]
    }
