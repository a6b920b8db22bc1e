"""`NodeFacts`: what the API server says about one node, and for each part why it is not known."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import attrs

from ...operations.cluster_view import PluginPod, plugin_pod
from ..answers import Answer, Question, not_known, question
from ..plain import mapping_in, path_of, string_in

if TYPE_CHECKING:
    from ..node import Once

Object = Mapping[str, Any]


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

    def in_plugin(self, command: str, path: str = "") -> str:
        """Return how to run a command in a plugin's container: in that of a pod, or of the node's only plugin."""
        paths = [path] if path else [path_of(pod) for _, pod in self.plugins()]
        namespace, _, name = (paths[0] if len(paths) == 1 else "NAMESPACE/POD").partition("/")
        return f"kubectl -n {namespace} exec {name} -- {command}"


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


def has_ended(pod: Object) -> bool:
    """Return whether a pod has ended, for good."""
    return string_in(status_of(pod).get("phase")) in ("Succeeded", "Failed")


def status_of(item: Object) -> Object:
    """Return an object's status."""
    return mapping_in(item.get("status"))
