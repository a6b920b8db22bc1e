"""Service account, permissions, and the policies that narrow them, as objects of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

Document = dict[str, Any]

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
