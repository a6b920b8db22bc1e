"""What a plugin is in the cluster: an account, its rights, the policies that narrow them, and a driver's DeviceClasses.

A device plugin has an account only if its settings make it ask the API server, and with no more rights than they need.
The rights of a DRA driver are those that `kdp.dra` uses. Each right has its reason; a new request in
`kdp.cluster.api.NodeApi` or `ClusterApi` needs its right here.

RBAC makes no difference between nodes, so an account that may write its own slices could write all of them. A pod's
token names the pod's node (from 1.32 on without switching it on), so a ValidatingAdmissionPolicy can: it lets a driver
write slices of that node and of this driver only. With it, an intruder on one node cannot offer devices of another one.
A plugin or driver may write its own Events only. A device plugin may remove one taint of its own Node. A driver may
change its own entries in the status of claims that have its devices on that node. No policy can restrict evictions to
the node: the request does not name it.

Source: DRA contract sections 3.5 and 3.7.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import attrs

from ...cluster.event_aggregation import COMPONENT
from ...dra.render import RESOURCE, in_short

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


# -- a device plugin ---------------------------------------------------------------------------------------------------


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
        policies.append((f"{name}-events", _events_policy(name, namespace, COMPONENT, "a device plugin")))
    if account.startup_taint is not None:
        policies.append((f"{name}-node", _node_policy(name, namespace, account.startup_taint)))
    return account_objects(name, namespace, account.rules, policies)


def _events_policy(name: str, namespace: str, component: str, who: str) -> Document:
    is_own = f"{{0}}.reportingComponent == '{component}' && {{0}}.reportingInstance == variables.tokenNode"
    validations = [
        {
            "expression": is_own.format("object"),
            "message": f"{who} may write Events of {component} on its own node only",
        },
        {
            "expression": f"oldObject == null || ({is_own.format('oldObject')})",
            "message": f"{who} may change its own Events only",
        },
    ]
    return policy(
        name,
        namespace,
        "is-this-account",
        resource="events",
        operations=["CREATE", "UPDATE"],
        validations=validations,
    )


def _node_policy(name: str, namespace: str, key: str) -> Document:
    def same(field: str, nothing: str) -> str:
        return f"object.{field}.orValue({nothing}) == oldObject.{field}.orValue({nothing})"

    fields = [
        same("metadata.?labels", "{}"),
        same("metadata.?annotations", "{}"),
        same("metadata.?finalizers", "[]"),
        same("metadata.?ownerReferences", "[]"),  # with a new one, the garbage collector deletes the Node
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


# -- a DRA driver ------------------------------------------------------------------------------------------------------

_RESOURCES: Final = "resource.k8s.io"

_SLICE: Final = "(request.operation == 'DELETE' ? oldObject : object)"


@attrs.frozen(kw_only=True)
class Cluster:
    """What a DRA driver is in the cluster.

    Attributes:
        driver: Its name, which is also that of the DeviceClass of devices that name no resource themselves.
        resource: The resource of devices that name none themselves; None: each names its own.
        others: The resources that devices name, besides; where there are several, each has a DeviceClass of its own.
        has_extended_resources: Whether pods may ask for the resources instead of making a claim.
        writes_status: Whether it says in claims how their devices are.
        pool: The pool of devices that are no node's own; None: they are the node's.
        is_controller: Whether it publishes that pool, and serves no kubelet.
        reads_labels: Whether a label of its node names its configuration.
    """

    driver: str
    resource: str | None = None
    others: tuple[str, ...] = ()
    has_extended_resources: bool = False
    writes_status: bool = False
    pool: str | None = None
    is_controller: bool = False
    reads_labels: bool = False

    @property
    def rules(self) -> tuple[PolicyRule, ...]:
        """What it may do; the whole of it."""
        of = "node" if self.pool is None else "pool"
        verbs = ("list", "watch", "create", "update", "delete")
        publish = PolicyRule(_RESOURCES, "resourceslices", verbs, f"publish the {of}'s devices")
        labels = (READS_LABELS,) if self.reads_labels else ()
        if self.is_controller:
            return (publish, *labels)
        read = PolicyRule(_RESOURCES, "resourceclaims", ("get",), "read what a claim was given")
        node = PolicyRule("", "nodes", ("get",), "the slices belong to the node, and vanish with it")
        kept = "its devices from being published" if self.pool is None else "claims from being prepared"
        report = PolicyRule("", "events", ("create",), f"report on the node what keeps {kept}")
        # The slices of a pool are written by its controller.
        rules = (publish, read, node, report) if self.pool is None else (read, report, *labels)
        if not self.writes_status:
            return rules
        scope = "associated-node:update" if self.pool is None else "arbitrary-node:update"
        return (
            *rules,
            PolicyRule(_RESOURCES, "resourceclaims/status", ("update",), "report in claims the state of their devices"),
            PolicyRule(_RESOURCES, "resourceclaims/driver", (scope,), "the same, from Kubernetes 1.36 on", self.driver),
        )


def cluster_objects(name: str, cluster: Cluster, namespace: str) -> list[Document]:
    """Return what is applied before the DaemonSet, the rights after what narrows them."""
    writes_slices = cluster.is_controller or cluster.pool is None
    policies = [(name, _policy(name, namespace, cluster))] if writes_slices else []
    if not cluster.is_controller:
        policies.append((f"{name}-events", _events_policy(name, namespace, cluster.driver, "a driver")))
    if cluster.writes_status:
        policies.append((f"{name}-claims", _claims_policy(name, namespace, cluster)))
    objects = account_objects(name, namespace, cluster.rules, policies)
    if not cluster.is_controller:  # where pods can have the devices is where the nodes' drivers are
        objects += (
            document(f"{_RESOURCES}/v1", "DeviceClass", name, title, spec=spec)
            for title, spec in _device_classes(cluster).items()
        )
    return objects


def _device_classes(cluster: Cluster) -> dict[str, Document]:
    """Return the specs of the DeviceClasses, by name."""
    driver = f"device.driver == '{cluster.driver}'"
    resources = (*((cluster.resource,) if cluster.resource else ()), *cluster.others)
    if len(resources) < 2:
        return {cluster.driver: _device_class(cluster, driver, cluster.resource)}
    attributes = f"device.attributes['{cluster.driver}']"
    has = f"'{RESOURCE}' in {attributes}"
    found: dict[str, Document] = {}
    for each in resources:
        is_it = f"{attributes}.{RESOURCE} == '{in_short(each)}'"
        # Devices of the class's own resource need not name it.
        is_own = each == cluster.resource
        chosen = f"{driver} && (!({has}) || {is_it})" if is_own else f"{driver} && {has} && {is_it}"
        found[cluster.driver if is_own else _class_name(each)] = _device_class(cluster, chosen, each)
    return found


def _class_name(resource: str) -> str:
    """Return ``slot.example.com`` for ``example.com/slot``, as a driver of that resource would be called."""
    domain, _, name = resource.partition("/")
    return f"{re.sub('[^a-z0-9.]+', '-', name.lower()).strip('-.')}.{domain}"


def _device_class(cluster: Cluster, expression: str, resource: str | None) -> Document:
    extended = {"extendedResourceName": resource} if cluster.has_extended_resources else {}
    return {"selectors": [{"cel": {"expression": expression}}], **extended}


def _policy(name: str, namespace: str, cluster: Cluster) -> Document:
    driver = cluster.driver
    is_its_own = {
        "expression": f"variables.sliceDriver == '{driver}'",
        "messageExpression": f"'{driver} may not write a slice of the driver ' + variables.sliceDriver",
    }
    return policy(
        name,
        namespace,
        "is-this-driver",
        group=_RESOURCES,
        resource="resourceslices",
        operations=["CREATE", "UPDATE", "DELETE"],
        variables={
            "sliceNode": f"{_SLICE}.spec.?nodeName.orValue('')",
            "sliceDriver": f"{_SLICE}.spec.driver",
            "slicePool": f"{_SLICE}.spec.pool.name",
        },
        validations=[*_of_whose(cluster), is_its_own],
    )


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


def _claims_policy(name: str, namespace: str, cluster: Cluster) -> Document:
    driver = cluster.driver
    pool = "variables.tokenNode" if cluster.pool is None else f"'{cluster.pool}'"
    results = "object.status.?allocation.?devices.?results.orValue([])"
    new, old = (f"{each}.?status.?devices.orValue([])" for each in ("object", "oldObject"))
    validations = [
        {
            "expression": f"{results}.exists(r, r.driver == '{driver}' && r.pool == {pool})",
            "messageExpression": f"'a driver may write a claim only that has its devices of pool ' + {pool}",
        },
        {
            "expression": "object.status.?allocation == oldObject.status.?allocation "
            "&& object.status.?reservedFor == oldObject.status.?reservedFor",
            "message": "a driver may change status.devices of a claim only",
        },
        {
            "expression": f"{new}.all(d, d.driver == '{driver}' || d in {old}) "
            f"&& {old}.all(d, d.driver == '{driver}' || d in {new})",
            "message": "a driver may change its own entries of status.devices only",
        },
    ]
    return policy(
        name,
        namespace,
        "is-this-driver",
        group=_RESOURCES,
        resource="resourceclaims/status",
        operations=["UPDATE"],
        validations=validations,
    )
