"""A DRA driver's objects in the cluster: service account, permissions, a policy that narrows them, DeviceClass.

The rights are those that `kdp.dra` uses, each with its reason; who adds a request to `kdp.cluster.api.ClusterApi` adds
it here.

RBAC cannot tell one node's slices from another's, so an account that may write its own could write all of them. A pod's
token names the pod's node (from 1.32 on without switching it on), so a ValidatingAdmissionPolicy can: it lets the
account write slices of that node and of this driver only. With it, an intruder on one node cannot offer devices
of another one.

Source: DRA contract sections 3.5 and 3.7.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from ..dra.render import RESOURCE, in_short
from .account import READS_LABELS, Document, PolicyRule, account_objects, document, policy

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
