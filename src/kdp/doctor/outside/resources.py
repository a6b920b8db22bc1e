"""Questions about extended resources: what the node offers, what pods ask for, and which pods wait or were refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import printable
from ...operations.cluster_view import ClusterView, is_extended, requests_of
from ...operations.extended_resources import is_of_kubelet
from ..answers import Answer, failed, not_known, ok, warning
from ..node import counted, some
from ..plain import mapping_in, mappings_in, metadata_of, path_of, seconds_since, string_in
from .facts import asked, has_ended, status_of

if TYPE_CHECKING:
    from ...operations.cluster_view import ResourceRow
    from .facts import NodeFacts, Object

FRESH: Final = 600.0
"""Seconds for which a refused pod counts as a fault that lasts."""

_REFUSED: Final = ("UnexpectedAdmissionError", "OutOf")
_LINE: Final = 400


def _rows(facts: NodeFacts) -> list[ResourceRow]:
    """Return the resources of the node; those that only pods ask for have a capacity of 0."""
    view = ClusterView()
    for node in facts.node.items:
        view.add_node(dict(node))
    for pod in facts.pods.items:
        if not has_ended(pod):
            view.add_pod(dict(pod))
    return [*view.resources()]


@asked("outside-allocatable", "The scheduler counts allocatable devices only; with none, pods stay pending.", "node")
def allocatable(facts: NodeFacts) -> Answer:
    """Does the node offer all devices that it has?"""
    rows = [row for row in _rows(facts) if row.capacity]
    sick = [row for row in rows if row.unhealthy]
    seen = [f"{row.resource}: {row.allocatable} of {counted(row.capacity, 'device')} allocatable" for row in sick]
    remedy = f"the plugin says why: {facts.in_plugin('kdp status')}"
    if any(not row.allocatable for row in sick):
        why = "no plugin's pod is ready here" if not any(each.is_ready for each, _ in facts.plugins()) else ""
        reason = (
            why if why and not facts.pods.problem else "their plugin reports them as unhealthy, or its stream has ended"
        )
        return failed(f"{some(seen)}; {reason}", remedy)
    if sick:
        return warning(f"{some(seen)}; the others are unhealthy", remedy)
    return ok(some([f"{row.resource}: {row.allocatable}" for row in rows]) or "it has no extended resource")


@asked(
    "outside-zero",
    "A vanished plugin leaves its resource behind with 0 devices, which looks like hardware that failed.",
    "node",
)
def zero(facts: NodeFacts) -> Answer:
    """Is each resource of the node served?"""
    (node,) = facts.node.items
    there = mapping_in(status_of(node).get("capacity"))
    zeros = [row.resource for row in _rows(facts) if not row.capacity and row.resource in there]
    zeros = [name for name in zeros if is_extended(name)]
    if not zeros:
        return ok("no resource has a capacity of 0")
    if facts.pods.problem:
        return facts.pods.unknown
    seen = f"the node has 0 of {some(zeros)}"
    if facts.plugins() or facts.pods.is_cut:
        return not_known(f"{seen}; whether a plugin here serves it, the plugin says", facts.in_plugin("kdp status"))
    is_written = any(is_of_kubelet(dict(node), name) for name in zeros)
    whose = "; its kubelet wrote that when the plugin went away" if is_written else ""
    remedy = f"remove what is left: kdp node withdraw {zeros[0]} --node {facts.name}"
    return warning(f"{seen}, and no plugin's pod is here{whose}", remedy)


@asked("outside-requested", "If a device fails, its pod keeps it, and no new pod fits.", "node", "pods")
def requested(facts: NodeFacts) -> Answer:
    """Do pods ask for no more devices than the node offers?"""
    over = [row for row in _rows(facts) if row.requested > row.allocatable]
    if not over:
        return ok("no resource is asked for beyond that")
    seen = [f"{row.resource}: {row.requested} requested, {row.allocatable} allocatable" for row in over]
    remedy = f"move the pods that keep failed devices: kubectl drain {facts.name} --ignore-daemonsets"
    return warning(some(seen), remedy)


@asked(
    "outside-pods-waiting",
    "The scheduler's own sentence says which nodes it has looked at, and what they lack.",
    "node",
    "waiting",
)
def waiting(facts: NodeFacts) -> Answer:
    """Is no pod waiting for a resource of this node?"""
    names = {row.resource for row in _rows(facts)}
    found: list[tuple[str, str]] = []
    for pod in facts.waiting.items:
        spec = mapping_in(pod.get("spec"))
        selected = mapping_in(spec.get("nodeSelector")).get("kubernetes.io/hostname") == facts.name
        asked = requests_of(spec)
        if asked and (selected or not names.isdisjoint(asked)):
            found.append((path_of(pod), _scheduler_says(pod)))
    if not found:
        more = f" among the first {len(facts.waiting.items)} that wait" if facts.waiting.is_cut else ""
        return ok(f"none{more}")
    namespace, _, name = found[0][0].partition("/")
    seen = f"{counted(len(found), 'pod')}: {some([f'{path}: {words}' for path, words in found], 2)}"
    return warning(seen, f"see what the scheduler says: kubectl -n {namespace} describe pod {name}")


def _scheduler_says(pod: Object) -> str:
    conditions = mappings_in(status_of(pod).get("conditions"))
    words = [string_in(each.get("message")) for each in conditions if each.get("type") == "PodScheduled"]
    return printable(next((each for each in words if each), "the scheduler has not said why"), _LINE)


@asked(
    "outside-pods-refused",
    "A refused pod does not start again; its controller makes another one, which is refused, too.",
    "pods",
)
def refused(facts: NodeFacts) -> Answer:
    """Has the kubelet admitted each pod with devices?"""
    found: list[tuple[float, str]] = []
    for pod in facts.pods.items:
        status = status_of(pod)
        reason = string_in(status.get("reason"))
        # A pod that lacks cpu or memory is refused, too, with OutOfcpu: the name of a resource has a slash.
        if reason.startswith(_REFUSED) and (reason == _REFUSED[0] or "/" in reason):
            age = seconds_since(metadata_of(pod).get("creationTimestamp"), facts.now) or 0.0
            found.append((age, f"{path_of(pod)}: {printable(string_in(status.get('message')), _LINE)}"))
    if not found:
        return ok("it has refused none that is still there")
    age, newest = min(found)
    seen = f"{counted(len(found), 'pod')} refused, the newest {age:.0f} s ago: {newest}"
    remedy = "the sentence names the fault; docs/reference/faults.md has what mends it. Remove the pods afterwards"
    return (failed if age < FRESH else warning)(seen, remedy)


QUESTIONS: Final = (allocatable, zero, requested, waiting, refused)
