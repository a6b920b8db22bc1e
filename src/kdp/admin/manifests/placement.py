"""`Placement`: where the pods run, what they are made of, and who may reach them: what the administrator decides.

A backend may name labels of nodes that have its hardware (`Needs.node_labels`), such as NFD's label of a PCI vendor:
one of them is enough. What the administrator asks for of a node's labels holds besides.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, final

import attrs

from ...errors import InvalidValueError
from ...model.names import check_label_name, check_label_value

Document = dict[str, Any]

Propagation = Literal["none", "host-to-container"]
"""Whether a file system that the node mounts later, below a mounted directory, is seen in the container."""

EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")

MEMORY: Final = "128Mi"
"""The pods' limit of memory. With `kdp doctor` and two `kdp status` at once, a plugin's container peaked at 67 MiB."""

SELINUX_TYPE: Final = "spc_t"
"""The type that SELinux does not confine. By container-selinux, ``container_device_plugin_t`` may write to files of the
type ``container_file_t`` only. A kubelet gives other types to ``/var/lib/kdp`` and ``/run/cdi``."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_QUANTITY = re.compile(r"[1-9][0-9]*(Ki|Mi|Gi|k|M|G)?", re.ASCII)


def check_label(what: str, text: str) -> None:
    """Check a name that must be a DNS label.

    Raises:
        InvalidValueError: It is none.
    """
    if not _LABEL.fullmatch(text):
        raise InvalidValueError(
            f"{what} {text!r}: must be at most 63 small letters, digits and dashes, a letter or digit at both ends; "
            f"for example 'kdp-widgets'"
        )


@final
@attrs.frozen
class LabelRule:
    """What is asked for of a node's labels.

    Attributes:
        name: The label.
        operator: As Kubernetes has it in a node selector's term.
        value: The value that ``In`` and ``NotIn`` are about.
    """

    name: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    value: str | None = None

    @classmethod
    def parse(cls, text: str) -> LabelRule:
        """Read ``LABEL=VALUE``, ``LABEL!=VALUE``, ``LABEL``, or ``!LABEL``.

        Raises:
            InvalidValueError: It is none of these.
        """
        name, equals, value = text.partition("=")
        is_not = name.endswith("!") if equals else name.startswith("!")
        name = name.strip("!")
        try:
            check_label_name(name)
            check_label_value(value)
        except InvalidValueError as error:
            raise InvalidValueError(
                f"{text!r} must be LABEL=VALUE, LABEL!=VALUE, LABEL, or !LABEL ({error}); for example "
                f"example.com/widget=true"
            ) from None
        if equals:
            return cls(name, "NotIn" if is_not else "In", value)
        return cls(name, "DoesNotExist" if is_not else "Exists")

    def expression(self) -> Document:
        """Return it in the words of Kubernetes."""
        values = {} if self.value is None else {"values": [self.value]}
        return {"key": self.name, "operator": self.operator, **values}


@final
@attrs.frozen
class Toleration:
    """A taint that keeps the pods off no node.

    Attributes:
        key: The taint's key; None: every taint.
        value: The taint's value; None: any.
        effect: The taint's effect; None: any.
    """

    key: str | None = None
    value: str | None = None
    effect: str | None = None

    @classmethod
    def parse(cls, text: str) -> Toleration:
        """Read ``KEY``, ``KEY=VALUE``, ``KEY:EFFECT``, or ``KEY=VALUE:EFFECT``.

        Raises:
            InvalidValueError: It is none of these.
        """
        rest, colon, effect = text.partition(":")
        key, equals, value = rest.partition("=")
        try:
            check_label_name(key)
            check_label_value(value)
            if colon and effect not in EFFECTS:
                raise InvalidValueError(f"the effect must be one of {', '.join(EFFECTS)}")
        except InvalidValueError as error:
            raise InvalidValueError(
                f"{text!r} must be KEY, KEY=VALUE, or either with :EFFECT ({error}); for example "
                f"example.com/widget:NoSchedule, or all, or none"
            ) from None
        return cls(key, value if equals else None, effect if colon else None)

    def document(self) -> Document:
        """Return it in the words of Kubernetes."""
        if self.key is None:
            return {"operator": "Exists"}
        made: Document = {"key": self.key, "operator": "Exists" if self.value is None else "Equal"}
        if self.value is not None:
            made["value"] = self.value
        return made if self.effect is None else {**made, "effect": self.effect}


ALL_TAINTS: Final = (Toleration(),)


@final
@attrs.frozen(kw_only=True)
class Placement:
    """Where and from what the pods are made.

    Attributes:
        image: The container's image.
        pull_secrets: Secrets with the registry's credentials.
        namespace: Where; the priority class may be refused by a quota elsewhere than in ``kube-system``.
        node_labels: Any one of these the node must have; empty: nothing is asked for.
        node_rules: All of these must hold of the node's labels.
        tolerations: The taints that keep the pods off no node; None: what the kind of pod has by default.
        priority_class: The pods' PriorityClass; None: what the kind of pod has by default; empty: none.
        runtime_class: The pods' RuntimeClass; None: the default.
        selinux_type: The process's SELinux type; `None` for the runtime's default. It means nothing on a node without
            SELinux.
        propagation: Whether later mounts of the node are seen below what is mounted read-only.
        memory_limit: The container's limit of memory.
        network_policy: Whether a NetworkPolicy keeps other pods away.
        metrics_from: The namespace whose pods may reach the port all the same; None: there is none.
        openshift: Whether OpenShift's security context constraints are written as well.

    Raises:
        InvalidValueError: A name, or the limit, is none.
    """

    image: str
    pull_secrets: tuple[str, ...] = ()
    namespace: str = "kube-system"
    node_labels: tuple[str, ...] = ()
    node_rules: tuple[LabelRule, ...] = ()
    tolerations: tuple[Toleration, ...] | None = None
    priority_class: str | None = None
    runtime_class: str | None = None
    selinux_type: str | None = SELINUX_TYPE
    propagation: Propagation = "none"
    memory_limit: str = MEMORY
    network_policy: bool = True
    metrics_from: str | None = None
    openshift: bool = False

    def __attrs_post_init__(self) -> None:
        check_label("namespace", self.namespace)
        if self.metrics_from is not None:
            check_label("namespace", self.metrics_from)
        for secret in self.pull_secrets:
            check_label("image pull secret", secret)
        if not _QUANTITY.fullmatch(self.memory_limit):
            raise InvalidValueError(
                f"memory limit {self.memory_limit!r}: must be a number of bytes, with a suffix as Mi; for example "
                f"'{MEMORY}'"
            )
        if not self.image or self.image != "".join(self.image.split()):
            raise InvalidValueError(
                f"image {self.image!r}: must be a reference without spaces; "
                "for example 'registry.example.com/widgets:1'"
            )

    @property
    def node_selector(self) -> dict[str, str]:
        """The labels that the node must have with these values; a cluster may have nodes with Windows."""
        asked = {rule.name: rule.value or "" for rule in self.node_rules if rule.operator == "In"}
        return {"kubernetes.io/os": "linux", **asked}

    @property
    def affinity(self) -> Document | None:
        """What else is asked for of the node's labels, in the words of Kubernetes; None: nothing."""
        rules = [rule.expression() for rule in self.node_rules if rule.operator != "In"]
        either = [[LabelRule.parse(label).expression()] for label in self.node_labels] or [[]]
        terms = [{"matchExpressions": [*term, *rules]} for term in either if term or rules]
        if not terms:
            return None
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        return {"nodeAffinity": required}
