"""Questions about Dynamic Resource Allocation: are the devices published, and can claims get them?

The driver's own status says most. Classes and claims are the API server's (`kdp.doctor.cluster`).
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from .answers import Answer, failed, not_known, ok, question, quoted, warning
from .cluster import ClusterFacts
from .commands import kubectl
from .node import DEVICE_PLUGIN, counted, some
from .plain import mapping_in, mappings_in, metadata_of, name_of, path_of, seconds_since, string_in
from .process import free_memory
from .resources import NO_PLUGIN, because, unknown_of_blocked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .living import ServedResource
    from .node import Node

NEEDED: Final = 40 << 20
"""Bytes of the control group that must be free before the API server's client is loaded, which takes 30 MiB."""

WAITED: Final = 30.0
"""Seconds for which a pod's claim may be without devices: a scheduler needs a moment."""

_NO_DRIVER: Final = "no DRA driver runs here"
_ROLE: Final = "; a role must grant "
_REFUSED: Final = (
    "the API server answered 403",
    "the API server answered 422",
    "the API server rejects the credentials",
)


def _drivers(node: Node) -> list[ServedResource]:
    return [resource for plugin in node.answering() if plugin.mode != DEVICE_PLUGIN for resource in plugin.resources]


def _without_drivers(node: Node) -> Answer | None:
    """Return the answer where there is no driver to ask about; None: there is one."""
    if not node.answering():
        return not_known(NO_PLUGIN)
    if _drivers(node):
        return None
    blocked = unknown_of_blocked(node) if any(each.mode != DEVICE_PLUGIN for each in node.answering()) else None
    return blocked or ok(_NO_DRIVER)


def _problem(driver: ServedResource) -> str:
    return driver.slices.problem or driver.reason


@question("dra-published", "The scheduler finds a node's devices only through its ResourceSlices.")
def published(node: Node) -> Answer:
    """Are the devices of the DRA driver published?"""
    if (answer := _without_drivers(node)) is not None:
        return answer
    drivers = _drivers(node)
    remedy = "see the next answers, and what is there: kubectl get resourceslices --field-selector spec.driver="
    missing = [each for each in drivers if each.devices and not each.slices.generation]
    if missing:
        seen = [f"{each.name}: no slice is published{because(_problem(each))}" for each in missing]
        return failed(some(seen), remedy + missing[0].name)
    old = [each for each in drivers if each.slices.problem]
    if old:
        told = some([f"{each.name}: the slices are old: {each.slices.problem}" for each in old])
        return warning(told, remedy + quoted(old[0].name))
    held = [(each, each.slices.withheld) for each in drivers if each.slices.withheld]
    if held:
        first, withheld = held[0]
        told = f"{first.name}: {counted(len(withheld), 'device')} not published: {some(sorted(withheld))}"
        return warning(told, "see the answer about the fields that the API server keeps")
    return ok(some([f"{each.name}: {counted(each.devices, 'device')} published" for each in drivers]))


@question(
    "dra-fields",
    "A server whose feature gate is off drops fields silently, and kdp withholds the devices that need them.",
)
def fields(node: Node) -> Answer:
    """Does the API server keep all fields of the slices?"""
    if (answer := _without_drivers(node)) is not None:
        return answer
    gates: dict[str, str] = {}
    for driver in _drivers(node):
        for path, gate in driver.slices.dropped:
            gates.setdefault(gate, path)
        for gate in driver.slices.withheld.values():
            gates.setdefault(gate, "the counters of partitions")
    if not gates:
        return ok("it has left out none")
    known = [gate for gate in gates if gate]
    seen = f"it leaves out {some([*gates.values()])}"
    if not known:
        return warning(seen, "update Kubernetes: kubectl version")
    flags = ",".join(f"{gate}=true" for gate in sorted(known))
    return warning(seen, f"switch it on for the API server and the scheduler: --feature-gates={flags}")


@question("dra-permissions", "A missing role or an admission policy keeps the devices from being published.")
def permissions(node: Node) -> Answer:
    """May the DRA driver write its slices?"""
    if (answer := _without_drivers(node)) is not None:
        return answer
    for driver in _drivers(node):
        problem = _problem(driver)
        if not any(words in problem for words in _REFUSED):
            continue
        seen = f"{driver.name}: {problem}"
        if _ROLE in problem:
            return failed(seen, "apply the ClusterRole that kdp manifests TARGET --mode dra writes, and its binding")
        if "rejects the credentials" in problem:
            return failed(seen, f"let the kubelet give the pod a new token: {_delete(node)}")
        return failed(seen, "see which policy refuses: kubectl get validatingadmissionpolicies; kubectl get events -A")
    return ok("the API server has refused nothing")


def _delete(node: Node) -> str:
    socket = next((each.socket for each in node.answering() if each.mode != DEVICE_PLUGIN), None)
    return kubectl(node, socket, "delete pod")


def _facts(node: Node) -> ClusterFacts | Answer | None:
    """Return what the API server has, or an answer without it; None: this process cannot ask."""
    if (answer := _without_drivers(node)) is not None:
        return answer
    free = free_memory(node)
    if free is not None and free < NEEDED:
        return None
    facts = node.cluster()
    if facts.is_impossible:
        return None
    if facts.problem:
        return not_known(facts.problem, "ask as an administrator: kdp doctor --kubeconfig FILE")
    return facts


@question("dra-class", "A claim asks for a class; without one, no claim can ask for the devices.")
def device_class(node: Node) -> Answer | None:
    """Is there a DeviceClass for the DRA driver?"""
    facts = _facts(node)
    if not isinstance(facts, ClusterFacts):
        return facts
    return with_class([driver.name for driver in _drivers(node)], facts)


def with_class(drivers: Sequence[str], facts: ClusterFacts) -> Answer:
    """Return whether each driver has a DeviceClass."""
    names = {driver: _classes_of(driver, facts) for driver in drivers}
    without = [driver for driver, classes in names.items() if not classes]
    unread = [name for driver in without for name in _classes_of(driver, facts, how=_names_driver)]
    if unread:
        return not_known(
            f"the expressions of {some(unread)} name {some(without)}, and do not compare device.driver with it",
            f"see whether they select its devices: kubectl get deviceclass {quoted(unread[0])} -o yaml",
        )
    if without:
        seen = f"no DeviceClass selects the devices of {some(without)}"
        look = f"kubectl get deviceclass {quoted(without[0])}"
        return failed(seen, f"make one, as kdp manifests TARGET --mode dra writes it: {look}")
    return ok(some([f"{driver}: {some(classes)}" for driver, classes in names.items()]))


def _selects(driver: str, expression: str) -> bool:
    """Return whether a CEL expression compares the driver's name with this one."""
    quoted = rf"""(?:"{re.escape(driver)}"|'{re.escape(driver)}')"""
    pattern = rf"(?<![\w.])device\.driver\s*==\s*{quoted}|{quoted}\s*==\s*device\.driver(?!\w)"
    return re.search(pattern, expression) is not None


def _names_driver(driver: str, expression: str) -> bool:
    """Return whether a CEL expression names this driver in another way, as in a list."""
    return re.search(rf"""(?<!!=)(?<!!=\s)["']{re.escape(driver)}["'](?!\s*!=)""", expression) is not None


def _classes_of(driver: str, facts: ClusterFacts, how: Callable[[str, str], bool] = _selects) -> list[str]:
    """Return the names of the classes whose selectors name a driver."""
    return [name_of(each) for each in facts.classes if any(how(driver, text) for text in _expressions(each))]


def _expressions(item: Mapping[str, Any]) -> Iterator[str]:
    for selector in mappings_in(mapping_in(item.get("spec")).get("selectors")):
        yield string_in(mapping_in(selector.get("cel")).get("expression"))


@question("dra-claims", "A pod stays pending until its claim has devices.")
def claims(node: Node) -> Answer | None:
    """Does each claim of a pod get devices of the DRA driver?"""
    facts = _facts(node)
    if not isinstance(facts, ClusterFacts):
        return facts
    return with_claims([driver.name for driver in _drivers(node)], facts)


def with_claims(drivers: Sequence[str], facts: ClusterFacts) -> Answer:
    """Return whether each pod's claim on these drivers has devices."""
    classes = {name for driver in drivers for name in _classes_of(driver, facts)}
    gone = {name for each in facts.claims for name in _asked(each)} - {name_of(each) for each in facts.classes}
    waiting = [each for each in facts.claims if _waits(each, classes | gone)]
    if not waiting:
        return ok("no claim of a pod waits")
    first = waiting[0]
    place = f"-n {quoted(metadata_of(first).get('namespace'))}"
    pod = next((each.get("name") for each in _owners(first) if each.get("kind") == "Pod"), "POD")
    lost = sorted(gone.intersection(name for each in waiting for name in _asked(each)))
    if lost:
        seen = f"{counted(len(waiting), 'claim')} without devices: {some([*map(path_of, waiting)])}"
        look = f"kubectl get deviceclass {quoted(lost[0])}"
        missing = f"make the class, as kdp manifests TARGET --mode dra writes it: {look}"
        return warning(f"{seen}; there is no DeviceClass {some(lost)}", missing)
    seen = (
        f"{counted(len(waiting), 'claim')} without devices for more than {WAITED:g} s: {some([*map(path_of, waiting)])}"
    )
    return warning(seen, f"see what the scheduler says: kubectl {place} describe pod {quoted(pod)}")


def _waits(claim: Mapping[str, Any], classes: Iterable[str]) -> bool:
    """Return whether a pod's claim asks for these classes, and has had no devices for long."""
    metadata = metadata_of(claim)
    if metadata.get("deletionTimestamp") or mapping_in(claim.get("status")).get("allocation"):
        return False
    is_of_pod = any(owner.get("kind") == "Pod" for owner in _owners(claim))
    is_ours = not set(classes).isdisjoint(_asked(claim))
    return is_of_pod and is_ours and (seconds_since(metadata.get("creationTimestamp"), time.time()) or 0.0) > WAITED


def _owners(claim: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return mappings_in(metadata_of(claim).get("ownerReferences"))


def _asked(claim: Mapping[str, Any]) -> Iterator[str]:
    """Return the classes that a claim asks for."""
    devices = mapping_in(mapping_in(claim.get("spec")).get("devices"))
    for request in mappings_in(devices.get("requests")):
        for each in (mapping_in(request.get("exactly")), *mappings_in(request.get("firstAvailable"))):
            if name := string_in(each.get("deviceClassName")):
                yield name


QUESTIONS: Final = (published, fields, permissions, device_class, claims)
