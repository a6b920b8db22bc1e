"""An account in the cluster, its rights, and the policies that narrow them; and which of them a device plugin has.

A device plugin has an account only for what its settings have it do in the cluster, and with no more rights.

Each right has its reason; who adds a request to `kdp.cluster.api.NodeApi` adds it here.

RBAC cannot tell one node from another, so policies narrow what it grants. A pod's token names the pod's node (from 1.32
on without switching it on). An account may write Events of its own only, and of its own Node only the taint that it is
to remove. Which pods it may evict no policy can say: the request does not name the pod's node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from ..cluster.event_aggregation import COMPONENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Document = dict[str, Any]

_CORE: Final = ""

RBAC: Final = "rbac.authorization.k8s.io"
ADMISSION: Final = "admissionregistration.k8s.io/v1"

NODE_NAMED: Final = "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][0].orValue('')"
"""The node that a pod's token names, as an expression; empty: none."""


@attrs.frozen
class PolicyRule:
    """A right in the cluster.

    Attributes:
        group: The API group; empty: the core.
        resource: The resource.
        verbs: What may be done with it.
        why: What for, in words.
        name: The one object that it is for; None: all.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    name: str | None = None


READS_LABELS: Final = PolicyRule(
    "", "nodes", ("get",), "its label names the configuration; RBAC cannot say 'its own node'"
)
"""The right of a process whose configuration is named by a label of its node (``--config-label``)."""


def document(version: str, kind: str, name: str, called: str | None = None, **rest: Any) -> Document:
    """Return an object of the cluster.

    Args:
        version: Group and version.
        kind: Its kind.
        name: What all objects of the plugin are labeled with.
        called: Its own name; None: the same.
        **rest: Its other fields.
    """
    metadata = {"name": called or name, "labels": {"app.kubernetes.io/name": name}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def account_objects(
    name: str, namespace: str, rules: Iterable[PolicyRule], policies: Iterable[tuple[str, Document]]
) -> list[Document]:
    """Return the account, the policies that narrow its rights, and then the rights.

    Args:
        name: The account's name.
        namespace: Where it is.
        rules: Its rights.
        policies: Name and ``spec`` of each ValidatingAdmissionPolicy.
    """
    account: Document = document("v1", "ServiceAccount", name)
    account["metadata"]["namespace"] = namespace
    account["automountServiceAccountToken"] = False  # for the plugin's pods only, which ask for it
    narrowing: list[Document] = []
    for called, spec in policies:
        binding = {"policyName": called, "validationActions": ["Deny"]}
        narrowing += [
            document(ADMISSION, "ValidatingAdmissionPolicy", name, called, spec=spec),
            document(ADMISSION, "ValidatingAdmissionPolicyBinding", name, called, spec=binding),
        ]
    return [
        account,
        *narrowing,
        document(
            f"{RBAC}/v1",
            "ClusterRole",
            name,
            rules=[
                {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
                | ({} if rule.name is None else {"resourceNames": [rule.name]})
                for rule in rules
            ],
        ),
        document(
            f"{RBAC}/v1",
            "ClusterRoleBinding",
            name,
            roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        ),
    ]


def policy(
    name: str,
    namespace: str,
    condition: str,
    *,
    group: str = _CORE,
    resource: str,
    operations: Sequence[str],
    variables: Mapping[str, str] | None = None,
    validations: Sequence[Document],
) -> Document:
    """Return the ``spec`` of a policy that narrows what an account may write.

    Args:
        name: The account's name.
        namespace: Where it is.
        condition: What the condition is called that it is this account.
        group: The API group of what it may write.
        resource: What it may write.
        operations: The operations that are looked at.
        variables: Expressions by name, besides ``tokenNode``: the node that the pod's token names.
        validations: What must hold.
    """
    rule = {
        "apiGroups": [group],
        "apiVersions": ["v1"],  # and, by the default matchPolicy, the same objects in other groups and versions
        "operations": list(operations),
        "resources": [resource],
    }
    is_account = f"request.userInfo.username == 'system:serviceaccount:{namespace}:{name}'"
    expressions = {"tokenNode": NODE_NAMED, **(variables or {})}
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": condition, "expression": is_account}],
        "variables": [{"name": name, "expression": expression} for name, expression in expressions.items()],
        "validations": list(validations),
    }


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


def _events_policy(name: str, namespace: str) -> Document:
    is_own = f"{{}}.reportingComponent == '{COMPONENT}' && {{}}.reportingInstance == variables.tokenNode"
    validations = [
        {
            "expression": is_own.format("object", "object"),
            "message": "a device plugin may write Events of kdp on its own node only",
        },
        {
            "expression": f"oldObject == null || ({is_own.format('oldObject', 'oldObject')})",
            "message": "a device plugin may change its own Events only",
        },
    ]
    operations = ["CREATE", "UPDATE"]
    return policy(name, namespace, "is-this-plugin", resource="events", operations=operations, validations=validations)


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
    validations = [
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
    return policy(name, namespace, "is-this-plugin", resource="nodes", operations=["UPDATE"], validations=validations)
