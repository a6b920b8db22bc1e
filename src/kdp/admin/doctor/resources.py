"""Questions about resources: are they registered, under valid names, by one process, and can they be allocated?"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from ...errors import InvalidNameError, KdpError, message_of
from ...kubelet.sockets import answered_by_others, is_plugin_socket, plugin_prefix
from ...model.names import check_resource_name
from .answers import Answer, failed, not_known, ok, question, quoted, warning
from .commands import hang_up, logs, look_for_pods, process
from .node import DEVICE_PLUGIN, counted, some

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...operations.status_document import KubeletList, ServedResource
    from .living import Plugin
    from .node import Node

SERVED: Final = frozenset({"connected", "registered", "published"})
"""States in which the kubelet knows a resource or a driver."""

NO_PLUGIN: Final = "no plugin answers"


def resources_of(node: Node) -> list[ServedResource]:
    """Return what all plugins serve."""
    return [resource for plugin in node.answering() for resource in plugin.status.resources]


def device_plugins(node: Node) -> list[Plugin]:
    """Return the device plugins that have answered."""
    return [plugin for plugin in node.answering() if plugin.status.mode == DEVICE_PLUGIN]


def without_device_plugin(node: Node) -> Answer | None:
    """Return the answer of a question about device plugins where none serves a resource; None: it does not apply."""
    return None if node.answering() else not_known(NO_PLUGIN)


def _names(node: Node) -> list[str]:
    """Return the names of all resources that are served by a device plugin, or that the target has."""
    served = [resource.name for plugin in device_plugins(node) for resource in plugin.status.resources]
    return [*dict.fromkeys([*served, *(node.target().resources if node.target else ())])]


@question("target", "A class that cannot be loaded serves no device.")
def target(node: Node) -> Answer | None:
    """Can the backend of the command line be loaded?"""
    if node.target is None:
        return None
    try:
        found = node.target()
    except KdpError as error:
        return failed(message_of(error), "correct the target or its parameters")
    return ok(f"{found.label} can be loaded")


@question(
    "configuration-file",
    "A plugin keeps and uses the last good configuration. With --strict-config, a new one does not start.",
)
def configuration(node: Node) -> Answer | None:
    """Are the options of the configuration file valid?"""
    if node.bad_file is None:
        return None
    if not node.bad_file:
        return ok("they are valid" if node.target else "they are valid; kdp doctor TARGET checks the parameters, too")
    plugins = node.answering()
    if not plugins:
        return failed(node.bad_file, "correct the file; without a last good one, a plugin does not start with it")
    kept = f"{node.bad_file}; the plugin keeps the last good configuration"
    return warning(kept, f"correct the file, then let the plugin read it again: {hang_up(node, plugins[0])}")


@question(
    "plugin-ready",
    "A plugin waits for its driver, its hardware, or the kubelet. It does not use a file that it has refused.",
)
def ready(node: Node) -> Answer:
    """Is the plugin ready?"""
    plugins = node.answering()
    if not plugins:
        return not_known(NO_PLUGIN)
    if (answer := _blocked(node)) is not None:
        return answer
    waiting = [plugin for plugin in plugins if not plugin.status.is_ready]
    if not waiting:
        if refused := [plugin for plugin in plugins if plugin.rejected]:
            seen = f"it runs with an earlier configuration; refused is: {some([each.rejected for each in refused])}"
            return warning(seen, f"correct the file, then let it be read again: {hang_up(node, refused[0])}")
        return ok("it is ready")
    reasons = [reason for plugin in waiting for reason in plugin.reasons]
    seen = some(reasons) if reasons else "it is not ready, because a resource is not registered"
    return failed(seen, _of_backends(node) or _remedy_of(node))


def _remedy_of(node: Node) -> str:
    """Return what mends that a resource is not served, where the backends are in order."""
    for plugin in node.answering():
        if plugin.directory("device_plugins") not in (None, node.paths.device_plugin_dir):
            place = quoted(node.paths.device_plugin_dir)
            return f"give the plugin this kubelet's directory: --device-plugin-dir {place}"
    resources = resources_of(node)
    if remedy := _remedy_in(resources):
        return remedy
    waits = any(each.devices or each.reason for each in resources if each.state != ABSENT)
    return _REGISTER if waits else _of_class(node)


def _remedy_in(resources: Sequence[ServedResource]) -> str:
    """Return what mends it as a plugin says it of a resource; empty: it does not."""
    remedies = [(each.reason or "").partition("; ")[2] for each in resources if each.state != ABSENT]
    return next(filter(None, remedies), "")


def _blocked(node: Node) -> Answer | None:
    """Return that a hook blocks a plugin's event loop; None: none does."""
    for plugin in node.answering():
        if plugin.status.is_blocked:
            process_id = plugin.status.pid
            seen = f"the event loop of process {process_id} is blocked by a hook of the backend, so it tells no more"
            return failed(seen, f"its log names the hook and the line: {logs(node, plugin.socket)}")
    return None


def unknown_of_blocked(node: Node) -> Answer | None:
    """Return that a plugin's devices are not known, because a hook blocks its event loop; None: none is blocked."""
    is_blocked = any(plugin.status.is_blocked for plugin in node.answering())
    return not_known("the event loop of a plugin is blocked, so it does not tell its devices") if is_blocked else None


def _of_backends(node: Node) -> str:
    """Return the remedy where a backend itself says what is missing; empty: none does."""
    for plugin in node.answering():
        if plugin.status.backend_problems:
            log = logs(node, plugin.socket)
            return f"mend what the class names; it is tried again without a restart. See dmesg -T | tail -50; {log}"
    return ""


@question(
    "resource-registered",
    "Only an open stream proves a registration; without it the kubelet treats the devices as gone.",
)
def registered(node: Node) -> Answer:
    """Does the kubelet hold a stream of each resource?"""
    plugins = node.answering()
    if not plugins:
        return not_known(NO_PLUGIN)
    if (answer := _blocked(node)) is not None:
        return answer
    resources = resources_of(node)
    problems = some([problem for plugin in plugins for problem in plugin.status.backend_problems])
    if not resources and problems:
        return failed(f"the plugin serves no resource: {problems}", _of_backends(node))
    if not resources:
        return warning("the plugin serves no resource yet", f"its log says why: {logs(node, plugins[0].socket)}")
    lost = [each for each in resources if each.state not in SERVED and each.state != ABSENT]
    if not lost:
        return ok(f"registered: {some([each.name for each in resources])}")
    seen = some([f"{each.name}: {each.state}{because(each.reason)}" for each in lost])
    if problems:
        return failed(f"{seen}; {problems}", _of_backends(node))
    waits = any(each.state == "awaiting stream" for each in lost)
    if waits:
        return failed(seen, "restart the kubelet, which holds the registration, on the node: systemctl restart kubelet")
    return failed(seen, _remedy_of(node))


_REGISTER: Final = "see the answers about kubelet.sock, and the kubelet's log: journalctl -u kubelet | grep -i plugin"

ABSENT: Final = "no hardware"
"""The state of a resource of which the node has no hardware (`kdp.deviceplugin.status.ABSENT`). That is no fault."""


def because(reason: str | None) -> str:
    """Return a reason as the end of a sentence; empty: there is none."""
    return f" ({reason})" if reason else ""


@question(
    "resource-list-size",
    "The kubelet takes 4 MiB in one message; kdp does not send a larger list, which would end the stream.",
)
def list_size(node: Node) -> Answer | None:
    """Does each device list fit what the kubelet takes?"""
    plugins = device_plugins(node)
    if not plugins:
        return without_device_plugin(node)
    if (answer := unknown_of_blocked(node)) is not None:
        return answer
    large = [each for plugin in plugins for each in plugin.status.resources if each.too_large]
    if not large:
        return ok("each list fits")
    seen = some([f"{each.name}: {each.too_large}" for each in large])
    is_served = all(each.state in SERVED for each in large)
    remedy = "declare fewer devices or replicas, or shorter ids; until then the kubelet has the list before"
    return (warning if is_served else failed)(seen, remedy if is_served else remedy.partition(";")[0])


@question("resource-name", "The kubelet refuses to register any other name.")
def name(node: Node) -> Answer | None:
    """Is the name of each resource valid?"""
    try:
        names = _names(node)
    except KdpError:
        return not_known("the target cannot be loaded")
    if not names:
        return without_device_plugin(node)
    wrong: list[str] = []
    for each in names:
        try:
            check_resource_name(each)
        except InvalidNameError as error:
            wrong.append(message_of(error))
    if wrong:
        return failed(some(wrong, 1), "give the class a valid name: resource = 'example.com/widget'")
    return ok(f"valid: {some(names)}")


@question(
    "resource-served-elsewhere",
    "The kubelet uses the plugin that registered last, and forgets the devices of the other one.",
)
def served_elsewhere(node: Node) -> Answer | None:
    """Does only one process serve each resource?"""
    names = [each.name for plugin in device_plugins(node) for each in plugin.status.resources]
    if not names:
        return without_device_plugin(node)
    stop = f"stop one of them, unless an update is under way: {look_for_pods(node)}"
    told = [(plugin, each) for plugin in device_plugins(node) for each in plugin.status.resources if each.rival]
    if told:
        seen = some([f"{each.name}: {(each.rival or '').partition(';')[0]}{_ours(plugin)}" for plugin, each in told])
        return failed(seen, stop)
    directory = node.paths.device_plugin_dir
    for each in names:
        found = answered_by_others(directory, partial(is_plugin_socket, plugin_prefix(directory, each)))
        if len(set(found.values())) > 1:
            who = some([f"process {pid} on {name}" for name, pid in sorted(found.items())])
            return failed(f"{each}: {len(found)} sockets of several processes answer: {who}", stop)
    return ok("one process of kdp serves each resource")


def _ours(plugin: Plugin) -> str:
    return f", beside process {process(plugin.socket) or plugin.status.pid}"


_SECOND: Final = re.compile(r" and ([^\s/;]+)/([^\s/;]+)")


@question(
    "device-given-twice",
    "A kubelet up to 1.37 may give a device to two pods (kubernetes#137534), as may one that has lost its checkpoint.",
)
def given_twice(node: Node) -> Answer | None:
    """Does only one pod hold each device?"""
    plugins = device_plugins(node)
    if not plugins:
        return without_device_plugin(node)
    # The plugin has asked the kubelet: a List of this command might be the cause.
    told = [f"{each.name}: {each.given_twice.rpartition(';')[0]}" for each in resources_of(node) if each.given_twice]
    if told:
        found = _SECOND.search(told[0])
        delete = f"kubectl -n {quoted(found[1])} delete pod {quoted(found[2])}" if found else look_for_pods(node)
        return failed(some(told), f"delete one of the two pods, as the second: {delete}")
    return ok("no device is held by two pods")


@question("resource-allocatable", "The kubelet offers healthy devices only; with none, pods stay pending.")
def allocatable(node: Node) -> Answer:
    """Are there healthy devices?"""
    if not node.answering():
        return not_known(NO_PLUGIN)
    if (answer := unknown_of_blocked(node)) is not None:
        return answer
    resources = [each for each in resources_of(node) if each.state != ABSENT]
    none = [each for each in resources if each.healthy == 0]
    some_sick = [each for each in resources if 0 < each.healthy < each.devices]
    if none:
        remedy = _remedy_in(none) or (_OF_DEVICES if any(each.devices for each in none) else _of_class(node))
        return failed(some([_sick(each) for each in none]), _of_backends(node) or remedy)
    if some_sick:
        return warning(some([_sick(each) for each in some_sick]), _OF_DEVICES)
    return ok(some([f"{each.name}: {counted(each.healthy, 'healthy device')}" for each in resources]) or "no resource")


_OF_DEVICES: Final = "look at the hardware that the reason names: dmesg -T | tail -50; each reason: kdp status"


def _of_class(node: Node) -> str:
    """Return how to see why a class found no device."""
    plugins = node.answering()
    bare = [each for each in plugins if not any(resource.devices for resource in each.status.resources)]
    socket = next((each.socket for each in [*bare, *plugins]), None)
    return f"see in its log what the class passed over: {logs(node, socket)}"


def _sick(resource: ServedResource) -> str:
    if resource.devices == 0:
        return f"{resource.name}: no device was discovered"
    reasons = reasons_of(each.reason for each in resource.listed if not each.is_healthy)
    return f"{resource.name}: {resource.healthy} of {counted(resource.devices, 'device')} healthy; {reasons}"


def reasons_of(reasons: Iterable[str | None]) -> str:
    """Return the reasons of devices with how many have each, the most frequent first."""
    counts = Counter(reason or "no reason was given" for reason in reasons)
    return some([f"{counted(number, 'device')}: {reason}" for reason, number in counts.most_common()])


@question("kubelet-list", "A kubelet with an old list offers devices that are gone, or hides those that are there.")
def same(node: Node) -> Answer | None:
    """Does the kubelet list the same healthy devices as the plugin?"""
    plugins = device_plugins(node)
    if not plugins:
        return without_device_plugin(node)
    # The plugin has asked the pod-resources API: gRPC takes 20 MiB more than its container has for this command.
    # Of another plugin's devices the question about other processes tells, and only that has the right remedy.
    seen = {each.name: each.kubelet_list for plugin in plugins for each in plugin.status.resources if not each.rival}
    compared = {name: found for name, found in seen.items() if found is not None}
    if not compared:
        return None  # the plugin was started just now, or has no pod-resources API: another question asks for that
    told = [text for name, found in compared.items() for text in _differences(name, found)]
    if told:
        return warning(
            some(told),
            "restart the kubelet, on the node, if the plugin has not mended it within 5 min: systemctl restart kubelet",
        )
    return ok(f"the kubelet listed the same healthy devices at {max(each.at for each in compared.values())}")


def _differences(name: str, found: KubeletList) -> list[str]:
    told: list[str] = []
    since = f" since {found.since}"
    if found.missing:
        told.append(f"{name}: the kubelet does not offer {some(found.missing)}{since}")
    if found.phantom:
        told.append(
            f"{name}: the kubelet offers {some(found.phantom)}{since}, which the plugin does not report as healthy"
        )
    return told


QUESTIONS: Final = (
    target,
    configuration,
    ready,
    registered,
    list_size,
    name,
    served_elsewhere,
    given_twice,
    allocatable,
    same,
)
