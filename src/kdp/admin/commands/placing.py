"""The options of ``kdp manifests`` that say where the pods run, and what they are made of; and what they come to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, final

import attrs
import click

from ...command.options import Word
from ...errors import ConfigurationError, InvalidValueError
from ..manifests.placement import ALL_TAINTS, MEMORY, SELINUX_TYPE, LabelRule, Placement, Propagation, Toleration

if TYPE_CHECKING:
    from ...model.needs import Needs

_Function = TypeVar("_Function", bound=Callable[..., Any])


@final
@attrs.frozen(kw_only=True)
class Placing:
    """What was given, as text."""

    image: str | None
    namespace: str
    node_selector: tuple[str, ...]
    toleration: tuple[str, ...]
    priority_class: str | None
    image_pull_secret: tuple[str, ...]
    runtime_class: str | None
    selinux_type: str
    mount_propagation: Propagation
    memory_limit: str
    network_policy: bool
    metrics_from: str | None
    openshift: bool

    def placement(self, needs: Needs, *, is_controller: bool) -> Placement:
        """Return what it comes to for a backend with these needs.

        Raises:
            ConfigurationError: Something that was given is wrong.
        """
        rules = _parsed("--node-selector", [each for each in self.node_selector if each != "none"], LabelRule.parse)
        asked = () if "none" in self.node_selector or is_controller else needs.node_labels
        tolerations: tuple[Toleration, ...] | None = None
        if self.toleration:
            words = [each for each in self.toleration if each not in ("all", "none")]
            tolerations = _parsed("--toleration", words, Toleration.parse)
            tolerations = ALL_TAINTS if "all" in self.toleration else tolerations
        return Placement(
            image=self.image or "",
            pull_secrets=self.image_pull_secret,
            namespace=self.namespace,
            node_labels=asked,
            node_rules=rules,
            tolerations=tolerations,
            priority_class="" if self.priority_class == "none" else self.priority_class,
            runtime_class=self.runtime_class,
            selinux_type=None if self.selinux_type == "none" else self.selinux_type,
            propagation=self.mount_propagation,
            memory_limit=self.memory_limit,
            network_policy=self.network_policy,
            metrics_from=self.metrics_from,
            openshift=self.openshift,
        )


_Parsed = TypeVar("_Parsed")


def _parsed(flag: str, texts: list[str], parse: Callable[[str], _Parsed]) -> tuple[_Parsed, ...]:
    try:
        return tuple(map(parse, texts))
    except InvalidValueError as error:
        raise ConfigurationError(f"{flag}: {error}") from None


_OPTIONS: Final = (
    click.option("--image", metavar="REFERENCE", help="The container's image; its command is 'kdp'."),
    click.option(
        "--image-pull-secret",
        multiple=True,
        metavar="NAME",
        help="A secret with the credentials of the image's registry; may be repeated.",
    ),
    click.option(
        "--namespace", default="kube-system", show_default=True, metavar="NAME", help="The objects' namespace."
    ),
    click.option(
        "--node-selector",
        multiple=True,
        metavar="RULE",
        help="Only on nodes whose labels fit: LABEL=VALUE, LABEL!=VALUE, LABEL, or !LABEL; may be repeated, then "
        "all must hold. 'none' takes away the labels that the class asks for by itself.",
    ),
    click.option(
        "--toleration",
        multiple=True,
        metavar="TAINT",
        help="Also on nodes with this taint: KEY, KEY=VALUE, or either with :EFFECT; may be repeated. 'all', which is "
        "the default on nodes, or 'none'.",
    ),
    click.option(
        "--priority-class",
        metavar="NAME",
        help="The pods' PriorityClass, or 'none'; default: system-node-critical, of a controller "
        "system-cluster-critical.",
    ),
    click.option("--runtime-class", metavar="NAME", help="The pod's RuntimeClass."),
    click.option(
        "--selinux-type",
        default=SELINUX_TYPE,
        show_default=True,
        metavar="TYPE",
        help="The process's SELinux type; 'none': the runtime's default. With container_device_plugin_t, an "
        "administrator labels the directories that the plugin writes.",
    ),
    click.option(
        "--mount-propagation",
        type=Word(["none", "host-to-container"]),
        default="none",
        show_default=True,
        help="Whether the container sees what the node mounts later, below a directory that it reads; such a directory "
        "is not read-only below mounts.",
    ),
    click.option(
        "--memory-limit",
        default=MEMORY,
        show_default=True,
        metavar="AMOUNT",
        help="The container's limit of memory, commands in it included.",
    ),
    click.option(
        "--network-policy/--no-network-policy",
        default=True,
        show_default=True,
        help="Write a NetworkPolicy that keeps other pods away from the port.",
    ),
    click.option(
        "--metrics-from",
        metavar="NAMESPACE",
        help="Let the pods of this namespace reach the port all the same, such as Prometheus.",
    ),
    click.option(
        "--openshift", is_flag=True, help="Also write OpenShift's security context constraints, for this pod alone."
    ),
)


def placement_options(function: _Function) -> _Function:
    """Add the options to a command, which gets what was given as one argument ``placing``."""
    names = [field.name for field in attrs.fields(Placing)]

    @functools.wraps(function)
    def wrapped(**values: Any) -> Any:
        placing = Placing(**{name: values.pop(name) for name in names})
        return function(placing=placing, **values)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return cast("_Function", wrapped)
