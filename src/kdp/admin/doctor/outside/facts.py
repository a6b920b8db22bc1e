"""`NodeFacts`: what the API server says about one node, and for each part why it is not known."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from ...cluster.cluster_view import PluginPod, plugin_pod
from ..answers import Answer, Question, not_known, question
from ..commands import FIND_DAEMONSETS
from ..plain import mapping_in, mappings_in, metadata_of, seconds_since, string_in

if TYPE_CHECKING:
    from ..node import Once

Object = Mapping[str, Any]

FRESH: Final = 600.0
"""Seconds for which something that was refused counts as a fault that lasts."""

_MOST_COMMANDS: Final = 3


@final
@attrs.frozen
class Listed:
    """Objects that the API server has listed.

    Attributes:
        items: The objects.
        problem: Why they are not known, with the right that is missing if it is one; empty: they are.
        is_cut: Whether there are more.
        status: The HTTP status of the refusal; 0: there was none, or no answer.
    """

    items: Sequence[Object] = ()
    problem: str = ""
    is_cut: bool = False
    status: int = 0

    @property
    def unknown(self) -> Answer:
        """The answer of a question that needs these objects and cannot have them."""
        return not_known(self.problem, "ask with an account that may do so: kdp doctor --node-name NODE --kubeconfig F")


@final
@attrs.frozen
class Said:
    """What one pod said through the API server: the last line of a log, or its answer to ``/readyz``.

    Attributes:
        text: What it said.
        status: The HTTP status of its answer; 0: it gave none.
        problem: Why nothing is known; empty: it is.
    """

    text: str = ""
    status: int = 0
    problem: str = ""


@final
@attrs.frozen(kw_only=True)
class NodeFacts:
    """What is known of a node.

    Attributes:
        name: Its name.
        now: When it was asked, in Unix seconds.
        node: The Node; at most one.
        leases: The lease that its kubelet renews each 10 s; at most one.
        pods: Its pods, ended ones included.
        waiting: The pods of the cluster that have no node yet.
        events: The Events about it.
        offered: What each node of the cluster offers: its name and its capacity.
        daemonsets: The DaemonSets of plugins.
        refusals: The Events that say why a DaemonSet has no pods.
        slices: The ResourceSlices of its DRA drivers.
        classes: The DeviceClasses.
        claims: The ResourceClaims.
        siblings: The pods in the namespaces of its plugins, by namespace.
        logs: The last line of each plugin pod's container that has ended, by pod.
        answers: What each plugin pod answers to ``/readyz``, by pod.
    """

    name: str
    now: float
    node: Listed
    leases: Listed = Listed()
    pods: Listed = Listed()
    waiting: Listed = Listed()
    events: Listed = Listed()
    offered: Listed = Listed()
    daemonsets: Listed = Listed()
    refusals: Listed = Listed()
    slices: Listed = Listed()
    classes: Listed = Listed()
    claims: Listed = Listed()
    siblings: Mapping[str, Listed] = attrs.field(factory=dict[str, Listed])
    logs: Mapping[str, Said] = attrs.field(factory=dict[str, Said])
    answers: Mapping[str, Said] = attrs.field(factory=dict[str, Said])

    def plugins(self) -> list[tuple[PluginPod, Object]]:
        """Return the plugins' pods of the node that have not ended, each with its object."""
        found = [(plugin_pod(dict(pod)), pod) for pod in self.pods.items if not has_ended(pod)]
        return [(plugin, pod) for plugin, pod in found if plugin is not None]

    def device_plugins(self) -> list[tuple[PluginPod, Object]]:
        """Return the pods of `plugins` that may be device plugins."""
        return [(plugin, pod) for plugin, pod in self.plugins() if not plugin.is_driver]

    def drivers(self) -> list[str]:
        """Return the names of the DRA drivers that publish devices of this node."""
        return [*dict.fromkeys(string_in(mapping_in(each.get("spec")).get("driver")) for each in self.slices.items)]

    def ask_plugins(self, command: str = "kdp status") -> str:
        """Return commands that ask the node's plugins: kdp's in their containers, and of the others the logs."""
        plugins = self.plugins()
        chosen = [each for each in plugins if each[0].is_kdp] or plugins
        if not chosen:
            return FIND_DAEMONSETS
        return "; ".join(ask_pod(plugin, pod, command) for plugin, pod in chosen[:_MOST_COMMANDS])


def ask_pod(plugin: PluginPod, pod: Object, command: str) -> str:
    """Return the command that asks a plugin's pod: in its container if that runs, and can answer."""
    named = f"kubectl -n {plugin.namespace}"
    if not runs(pod):
        return f"{named} describe pod {plugin.pod}"
    return f"{named} exec {plugin.pod} -- {command}" if plugin.is_kdp else f"{named} logs {plugin.pod}"


def runs(pod: Object) -> bool:
    """Return whether a container of a pod runs."""
    return any(mapping_in(each.get("state")).get("running") is not None for each in states_of(pod))


def asked(id: str, why: str, *needed: str) -> Callable[[Callable[[NodeFacts], Answer]], Question[Once[NodeFacts]]]:
    """Make a question of the function that answers it; see `question`. The question waits for the facts.

    Args:
        id: Its name for programs.
        why: Why the answer matters.
        *needed: The parts of `NodeFacts` without which the answer is not known.
    """

    def of(answer: Callable[[NodeFacts], Answer]) -> Question[Once[NodeFacts]]:
        @functools.wraps(answer)
        def ask(facts: Once[NodeFacts]) -> Answer:
            found = facts()
            parts: list[Listed] = [getattr(found, name) for name in needed]
            return next((part.unknown for part in parts if part.problem), None) or answer(found)

        return question(id, why)(ask)

    return of


def age_of(event: Object, now: float) -> float | None:
    """Return the seconds since the last time of an Event. `None` if it has no time."""
    moments = (event.get("lastTimestamp"), event.get("eventTime"), metadata_of(event).get("creationTimestamp"))
    ages = [age for moment in moments if (age := seconds_since(moment, now)) is not None]
    return ages[0] if ages else None


def has_ended(pod: Object) -> bool:
    """Return whether a pod has ended, for good."""
    return string_in(status_of(pod).get("phase")) in ("Succeeded", "Failed")


def states_of(pod: Object) -> list[Object]:
    """Return the states of a pod's containers."""
    return mappings_in(status_of(pod).get("containerStatuses"))


def status_of(item: Object) -> Object:
    """Return an object's status."""
    return mapping_in(item.get("status"))
