"""Questions about the pods of the node's plugins: are they there, ready, stable, and of one version?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from ....errors import printable
from ....model.quantities import Quantity
from ....storage.documents import parse_json
from ...cluster.cluster_view import PluginPod, plugin_pod
from ..answers import Answer, failed, not_known, ok, quoted, warning
from ..commands import FIND_DAEMONSETS, give_memory
from ..node import counted, some
from ..plain import mapping_in, mappings_in, metadata_of, number_in, path_of, seconds_since, string_in
from .facts import FRESH, age_of, ask_pod, asked, states_of, status_of

if TYPE_CHECKING:
    from .facts import NodeFacts, Object

RECENT: Final = 24 * 3600.0
"""Seconds for which a restart counts as a fault."""

_PORTS: Final = ("probes", "http", "metrics")
_LINE: Final = 300


def of_daemonset(item: Object) -> PluginPod | None:
    """Return the plugin that a DaemonSet runs; None: its pods are no plugins of a kubelet."""
    return plugin_pod({"metadata": metadata_of(item), "spec": _pod_spec(item)})


def _pod_spec(item: Object) -> Object:
    """Return the spec of a DaemonSet's pods."""
    return mapping_in(mapping_in(mapping_in(item.get("spec")).get("template")).get("spec"))


def port_of(pod: Object) -> int:
    """Return the TCP port on which a plugin answers probes; 0: it names none."""
    containers = mappings_in(mapping_in(pod.get("spec")).get("containers"))
    for container in containers:
        for probe in ("readinessProbe", "livenessProbe"):
            port = mapping_in(mapping_in(container.get(probe)).get("httpGet")).get("port")
            named = [each for each in mappings_in(container.get("ports")) if each.get("name") == port]
            if found := number_in(port) or (number_in(named[0].get("containerPort")) if named else 0):
                return found
    ports = [each for container in containers for each in mappings_in(container.get("ports"))]
    return next((number_in(each.get("containerPort")) for each in ports if each.get("name") in _PORTS), 0)


def ended_containers(pod: Object) -> list[str]:
    """Return the containers of a pod that have ended at least once, the most restarted first."""
    states = sorted(states_of(pod), key=lambda each: -number_in(each.get("restartCount")))
    return [string_in(each.get("name")) for each in states if _last_end(each)]


def _last_end(state: Object) -> Object:
    """Return how a container ended last; empty: it has not."""
    return mapping_in(mapping_in(state.get("lastState")).get("terminated"))


def _missing(facts: NodeFacts) -> Answer | None:
    """Return the answer of a question that needs a plugin's pod where there is none; None: there is one."""
    return None if facts.plugins() else not_known("no plugin's pod is known on this node")


@asked("outside-plugin-pod", "Without a plugin the kubelet has no devices to offer.", "pods")
def there(facts: NodeFacts) -> Answer:
    """Does a plugin's pod run on the node?"""
    plugins = facts.plugins()
    if plugins:
        return ok(some([f"{plugin.namespace}/{plugin.pod} ({plugin.title})" for plugin, _ in plugins]))
    seen = "no pod on this node mounts the kubelet's directory for plugins"
    if facts.pods.is_cut:
        return not_known(f"{seen}, among the first {len(facts.pods.items)} pods")
    for item in facts.daemonsets.items:
        if lacking := _lacking(facts, item):
            words = f"DaemonSet {path_of(item)} selects {some(lacking)}, which this node does not have"
            return warning(f"{seen}; {words}", f"if it should: kubectl label node {facts.name} {' '.join(lacking)}")
    remedy = f"compare its node selector and tolerations with this node: {FIND_DAEMONSETS}"
    return warning(f"{seen}; a plugin outside of Kubernetes is not seen from here", remedy)


def _selector(item: Object) -> Object:
    return mapping_in(_pod_spec(item).get("nodeSelector"))


def _lacking(facts: NodeFacts, item: Object) -> list[str]:
    """Return the labels that a DaemonSet selects, and that the node does not have."""
    labels = mapping_in(metadata_of(facts.node.items[0] if facts.node.items else {}).get("labels"))
    return [quoted(f"{name}={value}") for name, value in _selector(item).items() if labels.get(name) != value]


@asked(
    "outside-daemonsets", "A DaemonSet whose pods are refused, or that selects no node, runs no plugin.", "daemonsets"
)
def daemonsets(facts: NodeFacts) -> Answer:
    """Does the cluster let each plugin's DaemonSet have its pods?"""
    refused: list[tuple[Object, str, str]] = []
    idle: list[str] = []
    for item in facts.daemonsets.items:
        status = status_of(item)
        if number_in(status.get("observedGeneration")) < number_in(metadata_of(item).get("generation")):
            continue  # the controller has not seen this generation yet
        wanted = number_in(status.get("desiredNumberScheduled"))
        made = number_in(status.get("currentNumberScheduled"))
        if made < wanted and (words := _refusal(facts, item)):
            refused.append((item, words, f"{path_of(item)} has {made} of {counted(wanted, 'pod')}: {words}"))
        elif not wanted:
            selector = [f"{name}={value}" for name, value in _selector(item).items()]
            idle.append(f"{path_of(item)} selects no node{f': {some(selector)}' if selector else ''}")
    if refused:
        item, words, _ = refused[0]
        namespace, _, name = path_of(item).partition("/")
        remedy = f"see why: kubectl -n {namespace} describe daemonset {name}"
        if "PodSecurity" in words:
            label = "pod-security.kubernetes.io/enforce=privileged"
            remedy = f"let the namespace have such pods: kubectl label namespace {namespace} {label} --overwrite"
        return failed(some([seen for _, _, seen in refused]), remedy)
    if idle:
        return warning(some(idle), "compare it with the labels of the nodes: kubectl get nodes --show-labels")
    return ok(some([path_of(item) for item in facts.daemonsets.items]) or "there is none")


def _refusal(facts: NodeFacts, item: Object) -> str:
    """Return why a DaemonSet could not make its newest pod. Empty if no Event says so."""
    found: list[tuple[float, str]] = []
    for event in facts.refusals.items:
        about = mapping_in(event.get("involvedObject"))
        age = age_of(event, facts.now)
        if about.get("uid") == metadata_of(item).get("uid") and age is not None and age < FRESH:
            found.append((age, printable(string_in(event.get("message")), _LINE)))
    return min(found)[1] if found else ""


@asked(
    "outside-plugin-pod-ready",
    "A plugin that is not ready waits for its driver, for its hardware, or for the kubelet.",
    "pods",
)
def ready(facts: NodeFacts) -> Answer:
    """Is each plugin's pod ready?"""
    if (answer := _missing(facts)) is not None:
        return answer
    sick = [(path_of(pod), _state(facts, pod)) for plugin, pod in facts.plugins() if not plugin.is_ready]
    if not sick:
        return ok("each is ready")
    first, pod = next((plugin, pod) for plugin, pod in facts.plugins() if not plugin.is_ready)
    remedy = f"ask the plugin itself: {ask_pod(first, pod, 'kdp doctor')}"
    return failed(some([f"{path}: not ready{state}" for path, state in sick]), remedy)


def _state(facts: NodeFacts, pod: Object) -> str:
    """Return since when a pod is not ready, and the kubelet's words for it."""
    conditions = mappings_in(status_of(pod).get("conditions"))
    moments = [each.get("lastTransitionTime") for each in conditions if each.get("type") in ("Ready", "PodScheduled")]
    ages = [age for moment in moments if (age := seconds_since(moment, facts.now)) is not None]
    since = f" for {_span(min(ages))}" if ages else ""
    waits = [mapping_in(mapping_in(each.get("state")).get("waiting")) for each in states_of(pod)]
    words = [f"{string_in(each.get('reason'))} {string_in(each.get('message'))}".strip() for each in waits if each]
    return since + (f", {printable(some(words), _LINE)}" if words else "")


def _span(seconds: float) -> str:
    """Return a span of time in its largest unit."""
    for unit, length in (("days", 86400), ("hours", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


@asked("outside-plugin-restarts", "While a plugin is away, the node's devices get no new pod.", "pods")
def restarts(facts: NodeFacts) -> Answer:
    """Did each plugin's container run without a restart for a day?"""
    if (answer := _missing(facts)) is not None:
        return answer
    told: list[str] = []
    remedy = ""
    reboot = _reboot(facts)
    for plugin, pod in facts.plugins():
        for state in states_of(pod):
            end = _last_end(state)
            age = seconds_since(end.get("finishedAt"), facts.now)
            if not end or (age is not None and age > RECENT) or _ended_by(reboot, age):
                continue
            reason = string_in(end.get("reason")) or "no reason"
            since = "" if age is None else f", {_span(age)} ago"
            code = f"{reason}, exit code {number_in(end.get('exitCode'))}{since}"
            told.append(f"{path_of(pod)}: {counted(number_in(state.get('restartCount')), 'restart')}, last: {code}")
            logs = f"read why: kubectl -n {plugin.namespace} logs {plugin.pod} --previous"
            remedy = remedy or (_more_memory(plugin, pod) if reason == "OOMKilled" else logs)
            said = facts.logs.get(path_of(pod))
            if said is not None and said.text and ended_containers(pod)[0] == state.get("name"):
                told[-1] += f"; its last line: {printable(said.text, _LINE)}"
    return warning(some(told), remedy) if told else ok(f"none in the last {_span(RECENT)}")


def _more_memory(plugin: PluginPod, pod: Object) -> str:
    containers = mappings_in(mapping_in(pod.get("spec")).get("containers"))
    limits = [mapping_in(mapping_in(each.get("resources")).get("limits")).get("memory") for each in containers]
    try:
        most = max(int(Quantity(string_in(each)).value) for each in limits if each)
    except ValueError:  # it has no limit, or an odd one
        most = 128 << 20
    return give_memory(plugin.namespace, plugin.owner, most)


def _reboot(facts: NodeFacts) -> float | None:
    """Return the seconds since the last reboot of the node. `None` if no Event tells of one."""
    events = [each for each in facts.events.items if each.get("reason") == "Rebooted"]
    return min((age for each in events if (age := age_of(each, facts.now)) is not None), default=None)


def _ended_by(reboot: float | None, age: float | None) -> bool:
    """Return whether a container ended last with its node's reboot, which ended each one."""
    return reboot is not None and (age is None or age >= reboot)


@asked("outside-plugin-version", "A node that an update has left out behaves differently from its neighbors.", "pods")
def version(facts: NodeFacts) -> Answer:
    """Do the plugin's pods of all nodes have one version?"""
    if (answer := _missing(facts)) is not None:
        return answer
    told: list[str] = []
    unknown: Answer | None = None
    rollout = ""
    for plugin, _ in facts.plugins():
        others = facts.siblings.get(plugin.namespace)
        if others is None or others.problem:
            unknown = unknown or (not_known("its neighbors were not listed") if others is None else others.unknown)
            continue
        found = [plugin_pod(dict(each)) for each in others.items]
        images = Counter(
            each.image for each in found if each is not None and each.owner == plugin.owner and plugin.owner
        )
        if plugin.owner and len(images) > 1:
            counts = ", ".join(f"{image} on {counted(count, 'node')}" for image, count in images.most_common(3))
            told.append(f"{plugin.namespace}/{plugin.pod} has {plugin.image}; {plugin.owner} has {counts}")
            rollout = rollout or f"kubectl -n {plugin.namespace} rollout status daemonset/{plugin.owner}"
    if told:
        return warning(some(told), f"see whether an update is under way, or hangs: {rollout}")
    return unknown or ok("each has the image of its neighbors")


@asked("outside-plugin-answers", "The plugin's own answer is newer than its pod's condition.", "pods")
def answers(facts: NodeFacts) -> Answer:
    """Does each plugin say that it is ready, through the API server?"""
    if (answer := _missing(facts)) is not None:
        return answer
    good: list[str] = []
    bad: list[str] = []
    unknown: list[str] = []
    for _, pod in facts.plugins():
        path = path_of(pod)
        said = facts.answers.get(path)
        if said is None:
            unknown.append(f"{path}: its probes ask on no port, so only its container can ask it")
        elif said.problem:
            unknown.append(said.problem)
        elif said.status == 200:
            good.append(path)
        elif said.status == 503:
            bad.append(f"{path}: {_reason(said.text)}")
        else:
            unknown.append(f"{path}: it answered {said.status}, so it may be no plugin of kdp")
    if bad:
        return failed(some(bad), f"ask it for the reason: {facts.ask_plugins('kdp doctor')}")
    if unknown:
        return not_known(some(unknown), f"ask it yourself: {facts.ask_plugins('kdp doctor')}")
    return ok(f"ready: {some(good)}")


def _reason(text: str) -> str:
    """Return what a plugin that is not ready says: details, if it gives them to remote clients, else two words."""
    try:
        document: Object = mapping_in(parse_json(text))
    except ValueError:
        document = mapping_in(None)
    served = (document.get("resources"), document.get("drivers"))
    resources = [mapping_in(each) for found in served for each in mapping_in(found).values()]
    reasons = [string_in(each.get("reason")) for each in (document, *resources)]
    return printable(some([each for each in reasons if each]) or text or "not ready", _LINE)


QUESTIONS: Final = (there, daemonsets, ready, restarts, version, answers)
