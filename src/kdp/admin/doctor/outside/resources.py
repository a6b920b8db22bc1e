"""Questions about extended resources: what the node offers, what pods ask for, and which pods wait or were refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....cluster.nodes import mounts
from ....dra.names import driver_name
from ....errors import InvalidNameError, printable
from ....model.spelling import nearest
from ...cluster.cluster_view import ClusterView, is_extended, requests_of
from ...cluster.extended_resources import is_of_kubelet
from ..answers import Answer, failed, not_known, ok, warning
from ..claims import drivers_of, scheduler_says
from ..commands import FIND_DAEMONSETS
from ..node import counted, some
from ..plain import mapping_in, metadata_of, path_of, seconds_since, string_in
from .facts import FRESH, ask_pod, asked, has_ended, status_of

if TYPE_CHECKING:
    from ...cluster.cluster_view import ResourceRow
    from .facts import NodeFacts, Object

_OVERDUE: Final = 10.0
"""Seconds that a pod may take beyond its grace period."""

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
    # Three causes look alike in the Node's numbers: no plugin is here, the devices have failed, and the node has a
    # driver now.
    unserved = [row for row in rows if row.is_unserved and not facts.pods.problem]
    sick = [row for row in rows if row not in unserved and row.allocatable < row.capacity]
    plugins = [plugin.pod for plugin, _ in facts.device_plugins()]
    drivers = [] if plugins else facts.drivers()
    moved = [row for row in unserved if _driver_of(row.resource) in drivers]
    gone = [row for row in unserved if row not in moved]
    now = f"{some([*map(_offer, moved)])}; the devices are those of the DRA driver {some(drivers)} now"
    why = f"of {some(plugins)} none is ready" if plugins else "no device plugin's pod is here"
    away = f"{some([*map(_offer, gone)])}; {why}; pods that have devices keep them, and run on"
    if gone and not drivers:
        return failed(away, f"bring the plugin back: {_look(facts)}")
    remedy = f"the plugin says why: {facts.ask_plugins()}"
    if any(not row.allocatable for row in sick):
        reason = "their plugin reports them as unhealthy, or its stream has ended"
        return failed(f"{some([*map(_offer, sick)])}; {reason}", remedy)
    if sick:
        return warning(f"{some([*map(_offer, sick)])}; the others are unhealthy", remedy)
    if gone:  # a driver of another name may have them
        unless = f"if no driver has taken them over, bring the plugin back: {FIND_DAEMONSETS}"
        return warning(f"{now}; {away}" if moved else away, unless)
    if moved:
        return ok(now)
    return ok(some([f"{row.resource}: {row.allocatable}" for row in rows]) or "it has no extended resource")


def _offer(row: ResourceRow) -> str:
    return f"{row.resource}: {row.allocatable} of {counted(row.capacity, 'device')} allocatable"


def _driver_of(resource: str) -> str:
    """Return the name that kdp gives the DRA driver of a resource. Empty if the rules for drivers allow none."""
    try:
        return driver_name(resource)
    except InvalidNameError:
        return ""


def _look(facts: NodeFacts) -> str:
    """Return the command that shows why no device plugin is ready."""
    plugins = facts.device_plugins()
    return ask_pod(*plugins[0], "kdp doctor") if plugins else FIND_DAEMONSETS


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
    if facts.device_plugins() or facts.pods.is_cut:
        return not_known(f"{seen}; whether a plugin here serves it, the plugin says", facts.ask_plugins())
    is_written = any(is_of_kubelet(dict(node), name) for name in zeros)
    whose = "; its kubelet wrote that when the plugin went away" if is_written else ""
    remedy = f"remove what is left: kdp node withdraw {zeros[0]} --node {facts.name}"
    return warning(f"{seen}, and no device plugin's pod is here{whose}", remedy)


@asked("outside-requested", "If a device fails, its pod keeps it, and no new pod fits.", "node", "pods")
def requested(facts: NodeFacts) -> Answer:
    """Do pods ask for no more devices than the node offers?"""
    rows = _rows(facts)
    # Without its plugin a resource has no allocatable device, and the pods' devices are as good as before.
    over = [row for row in rows if row.requested > row.allocatable and row.capacity and not row.is_unserved]
    if not over:
        kept = [f"{row.resource}: pods keep {counted(row.requested, 'device')}" for row in rows if row.requested]
        return ok(some(kept) or "no pod here asks for a device")
    seen = [f"{row.resource}: {row.requested} requested, {row.allocatable} allocatable" for row in over]
    remedy = f"see which pod has the failed device, and delete that pod alone: {facts.ask_plugins()}"
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
    return printable(scheduler_says(pod) or "the scheduler has not said why", _LINE)


@asked(
    "outside-resource-names",
    "A pod that asks for a name which no node has waits for ever, and no node looks at fault.",
    "offered",
    "waiting",
    "classes",
)
def names(facts: NodeFacts) -> Answer:
    """Does some node have each resource that a waiting pod asks for?"""
    if facts.offered.is_cut:
        return not_known(f"the cluster has more than {len(facts.offered.items)} nodes", "see all names: kdp nodes")
    known = {name for each in facts.offered.items for name in mapping_in(status_of(each).get("capacity"))}
    known |= {string_in(mapping_in(each.get("spec")).get("extendedResourceName")) for each in facts.classes.items}
    asking: dict[str, list[str]] = {}
    for pod in facts.waiting.items:
        for name in requests_of(mapping_in(pod.get("spec"))):
            if name not in known:
                asking.setdefault(name, []).append(path_of(pod))
    if not asking:
        return ok("each that is asked for is on a node")
    offered = [each for each in sorted(known) if is_extended(each)]
    told: list[str] = []
    for name, pods in asking.items():
        meant = nearest(name, offered)
        slip = "" if meant is None else f"; did you mean {meant}?"
        told.append(f"{some(pods)} {'asks' if len(pods) == 1 else 'ask'} for {name}, which no node has{slip}")
    namespace, _, pod_name = next(iter(asking.values()))[0].partition("/")
    remedy = f"correct the name in what makes the pod, or see what there is: kdp nodes; kubectl -n {namespace} get pod"
    return warning(some(told), f"{remedy} {pod_name} -o yaml")


@asked("outside-pods-terminating", "A deleted pod keeps its devices until it has ended.", "pods", "claims", "slices")
def terminating(facts: NodeFacts) -> Answer:
    """Does each deleted pod with devices end?"""
    late: list[tuple[bool, str, str]] = []
    for pod in facts.pods.items:
        # Kubernetes adds the grace period to the time of the deletion.
        overdue = seconds_since(metadata_of(pod).get("deletionTimestamp"), facts.now)
        if overdue is None or overdue < _OVERDUE or has_ended(pod):
            continue
        drivers = drivers_of(pod, facts.claims.items)
        if not drivers and not requests_of(mapping_in(pod.get("spec"))):
            continue
        gone = [name for name in drivers if not _has_driver(facts, name)]
        seen = f"{path_of(pod)} should have ended {overdue:.0f} s ago"
        if gone:
            seen += f", and no pod of the driver {some(gone)} is ready here, which must release its devices"
        late.append((bool(gone), seen, path_of(pod)))
    if not late:
        return ok("none is late")
    late.sort(key=lambda each: not each[0])
    is_gone, _, path = late[0]
    namespace, _, name = path.partition("/")
    describe = f"kubectl -n {namespace} describe pod {name}"
    remedy = f"start the driver again, and the pods end by themselves: {FIND_DAEMONSETS}; {describe}"
    seen = some([words for _, words, _ in late])
    if is_gone:
        return failed(seen, remedy)
    return warning(seen, f"see what it waits for: {describe}; {facts.ask_plugins()}")


def _has_driver(facts: NodeFacts, driver: str) -> bool:
    """Return whether a DRA driver runs here: a ready pod has its directory, or it publishes without a pod."""
    ends = (f"/plugins/{driver}", "/plugins")
    drivers = [(plugin, pod) for plugin, pod in facts.plugins() if mounts(pod, ends)]
    return any(plugin.is_ready for plugin, _ in drivers) if drivers else driver in facts.drivers()


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
    remedy = "the sentence names the fault, and docs/reference/faults.md what mends it; afterwards delete the pods"
    return (failed if age < FRESH else warning)(seen, remedy)


QUESTIONS: Final = (allocatable, zero, requested, waiting, names, refused, terminating)
