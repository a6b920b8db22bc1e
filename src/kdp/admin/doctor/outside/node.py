"""Questions about the Node object: does the API server answer, is the kubelet alive, and what keeps pods away?"""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Final

from ....cluster.event_aggregation import COMPONENT
from ....errors import printable
from ....operations.news import ENDED_BY, subjects_of
from ..answers import Answer, failed, not_known, ok, warning
from ..node import some
from ..plain import list_in, mapping_in, mappings_in, metadata_of, seconds_since, string_in
from .facts import age_of, asked, status_of

if TYPE_CHECKING:
    from ....operations.news import Device
    from .facts import NodeFacts, Object

SILENT: Final = 40.0
"""Seconds without a renewed lease after which Kubernetes, too, takes a kubelet for silent; it renews each 10 s."""

RECENT: Final = 3600.0
"""Seconds for which an Event counts as a fault."""

_FLAG: Final = "--startup-taint"
_VARIABLE: Final = "KDP_STARTUP_TAINT"
_OWN: Final = "node.kubernetes.io/"
_LINE: Final = 300
_DENIED: Final = (401, 403)


@asked("outside-api-server", "All that is seen from outside comes from it.")
def server(facts: NodeFacts) -> Answer:
    """Does the API server answer?"""
    if not facts.node.problem or facts.node.status in (403, 404):
        return ok("it answers")
    remedy = "check the kubeconfig and the way to the server: kubectl get --raw /readyz"
    return failed(facts.node.problem, remedy)


@asked("outside-node-ready", "Pods are not started on a node whose kubelet is silent, whatever its devices are.")
def ready(facts: NodeFacts) -> Answer:
    """Is the node ready?"""
    if facts.node.status == 404:
        return failed(f"the cluster has no node {facts.name}", "name one of them: kubectl get nodes")
    if facts.node.problem:
        return facts.node.unknown
    node = facts.node.items[0]
    silence = _silence(facts)
    lease = "" if silence is None else f"; its kubelet renewed the lease {silence:.0f} s ago"
    remedy = f"look at its kubelet, on the node: systemctl status kubelet; kubectl describe node {facts.name}"
    found = [each for each in mappings_in(status_of(node).get("conditions")) if each.get("type") == "Ready"]
    if not found:
        return failed("its kubelet has not reported yet", remedy)
    status = string_in(found[0].get("status"))
    words = printable(f"{string_in(found[0].get('reason'))}: {string_in(found[0].get('message'))}", _LINE)
    since = printable(string_in(found[0].get("lastTransitionTime")), _LINE)
    if status != "True":
        state = "not ready" if status == "False" else "unknown, because its kubelet is silent,"
        return failed(f"it is {state} since {since}: {words}{lease}", remedy)
    if silence is not None and silence > SILENT:
        return warning(f"its status is Ready, but its kubelet is silent for {silence:.0f} s", remedy)
    return ok(f"it is ready since {since}")


def _silence(facts: NodeFacts) -> float | None:
    """Return the seconds since the kubelet renewed its lease; None: that is not known."""
    leases = [
        mapping_in(each.get("spec")) for each in facts.leases.items if metadata_of(each).get("name") == facts.name
    ]
    return seconds_since(leases[0].get("renewTime"), facts.now) if leases else None


@asked("outside-node-taints", "A pod without the toleration stays pending, although devices are free.", "node")
def taints(facts: NodeFacts) -> Answer:
    """May pods be placed on the node?"""
    spec = mapping_in(facts.node.items[0].get("spec"))
    found = [each for each in mappings_in(spec.get("taints")) if each.get("effect") != "PreferNoSchedule"]
    keys = [string_in(each.get("key")) for each in found]
    startup = [key for key in keys if key in _startup_keys(facts)]
    if startup:
        seen = f"the start-up taint {startup[0]} is still there"
        return warning(seen, "the plugin removes it when its resources are registered: see the answers about its pod")
    if spec.get("unschedulable") is True:
        return warning("it is cordoned", f"let it have pods again: kubectl uncordon {facts.name}")
    own = [key for key in keys if key.startswith(_OWN)]
    if own:
        return warning(f"Kubernetes has tainted it: {some(own)}", f"see why: kubectl describe node {facts.name}")
    return ok(f"pods need a toleration of {some(keys)}" if keys else "there are none")


def _startup_keys(facts: NodeFacts) -> set[str]:
    """Return the taints that the plugins of the node are told to remove."""
    keys: set[str] = set()
    for _, pod in facts.plugins():
        for container in mappings_in(mapping_in(pod.get("spec")).get("containers")):
            words = [string_in(each) for name in ("command", "args") for each in list_in(container.get(name))]
            keys |= {word.partition("=")[2] for word in words if word.startswith(f"{_FLAG}=")}
            keys |= {after for word, after in pairwise(words) if word == _FLAG}
            environ = mappings_in(container.get("env"))
            keys |= {string_in(each.get("value")) for each in environ if each.get("name") == _VARIABLE}
    return keys - {""}


@asked("outside-events", "With --events on, a plugin says there which devices failed, and why.", "events")
def events(facts: NodeFacts) -> Answer:
    """Is the node without recent Events about its devices?"""
    ours = [
        (age, string_in(event.get("reason")), string_in(event.get("message")), event.get("type") == "Warning")
        for event in facts.events.items
        if _is_ours(event) and (age := age_of(event, facts.now)) is not None
    ]
    over: dict[tuple[str, Device], float] = {}
    for age, reason, message, is_bad in ours:
        for subject in () if is_bad else subjects_of(message):
            over[reason, subject] = min(age, over.get((reason, subject), age))
    found: list[tuple[float, str]] = []
    for age, reason, message, is_bad in ours:
        end = ENDED_BY.get(reason, "")
        is_over = all(over.get((end, subject), inf) <= age for subject in subjects_of(message))
        if is_bad and age < RECENT and not is_over:
            found.append((age, printable(f"{reason}: {message}", _LINE)))
    if not found:
        return ok("none in the last hour")
    newest = [words for _, words in sorted(found)]
    return warning(
        some(newest, 2),
        f"see all of them: kubectl get events -n default --field-selector involvedObject.name={facts.name}",
    )


def _is_ours(event: Object) -> bool:
    component = string_in(event.get("reportingComponent")) or string_in(
        mapping_in(event.get("source")).get("component")
    )
    return component == COMPONENT or "." in component  # a driver's name; parts of Kubernetes have no dot in theirs


@asked("outside-permissions", "What it may not read is answered 'not known'.")
def permissions(facts: NodeFacts) -> Answer:
    """May this account read what the questions need?"""
    lists = (
        facts.node,
        facts.leases,
        facts.pods,
        facts.events,
        facts.offered,
        facts.daemonsets,
        facts.slices,
        facts.classes,
        facts.claims,
    )
    said = [*facts.logs.values(), *facts.answers.values()]
    problems = [each.problem for each in lists if each.status in _DENIED]
    problems += [each.problem for each in said if "answered 403" in each.problem]
    if not problems:
        return ok("the API server has refused nothing")
    rights = [problem.rpartition("; a role must grant the verb ")[2] for problem in problems if "; a role" in problem]
    seen = f"it lacks {some(rights, 8)}" if rights else some(problems)
    return not_known(seen, "let an administrator ask, or grant these rights: kdp doctor --help names all")


QUESTIONS: Final = (server, permissions, ready, taints, events)
