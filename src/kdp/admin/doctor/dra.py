"""Questions about Dynamic Resource Allocation: are the devices published, and can claims get them?

The driver's own status says most. Classes and claims are the API server's (`kdp.admin.doctor.cluster`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...operations.status_document import SliceStatus
from .answers import Answer, failed, not_known, ok, question, quoted, warning
from .claims import with_claims, with_class
from .cluster import ClusterFacts
from .commands import kubectl
from .node import DEVICE_PLUGIN, counted, some
from .process import free_memory
from .resources import NO_PLUGIN, because, unknown_of_blocked

if TYPE_CHECKING:
    from ...operations.status_document import ServedResource
    from .node import Node

NEEDED: Final = 40 << 20
"""Bytes of the control group that must be free before the API server's client is loaded, which takes 30 MiB."""

_NO_DRIVER: Final = "no DRA driver runs here"
_ROLE: Final = "; a role must grant "
_REFUSED: Final = (
    "the API server answered 403",
    "the API server answered 422",
    "the API server rejects the credentials",
)


def _drivers(node: Node) -> list[ServedResource]:
    return [
        resource
        for plugin in node.answering()
        if plugin.status.mode != DEVICE_PLUGIN
        for resource in plugin.status.resources
    ]


def _without_drivers(node: Node) -> Answer | None:
    """Return the answer where there is no driver to ask about; None: there is one."""
    if not node.answering():
        return not_known(NO_PLUGIN)
    if _drivers(node):
        return None
    blocked = unknown_of_blocked(node) if any(each.status.mode != DEVICE_PLUGIN for each in node.answering()) else None
    return blocked or ok(_NO_DRIVER)


def _slices(driver: ServedResource) -> SliceStatus:
    """Return a driver's slices. A status without slices counts as a driver that has published none."""
    return driver.slices or SliceStatus()


def _problem(driver: ServedResource) -> str:
    return _slices(driver).problem or driver.reason or ""


@question("dra-published", "The scheduler finds a node's devices only through its ResourceSlices.")
def published(node: Node) -> Answer:
    """Are the devices of the DRA driver published?"""
    if (answer := _without_drivers(node)) is not None:
        return answer
    drivers = _drivers(node)
    remedy = "see the next answers, and what is there: kubectl get resourceslices --field-selector spec.driver="
    missing = [each for each in drivers if each.devices and not _slices(each).generation]
    if missing:
        seen = [f"{each.name}: no slice is published{because(_problem(each))}" for each in missing]
        return failed(some(seen), remedy + missing[0].name)
    old = [each for each in drivers if _slices(each).problem]
    if old:
        told = some([f"{each.name}: the slices are old: {_slices(each).problem}" for each in old])
        return warning(told, remedy + quoted(old[0].name))
    held = [(each, _slices(each).withheld) for each in drivers if _slices(each).withheld]
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
        for field in _slices(driver).dropped:
            gates.setdefault(field.gate, field.path)
        for gate in _slices(driver).withheld.values():
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
            look = "kubectl get clusterrolebindings -o wide"
            return failed(seen, f"apply the ClusterRole and its binding, as kdp manifests writes them: {look}")
        if "rejects the credentials" in problem:
            return failed(seen, f"let the kubelet give the pod a new token: {_delete(node)}")
        return failed(seen, "see which policy refuses: kubectl get validatingadmissionpolicies; kubectl get events -A")
    return ok("the API server has refused nothing")


def _delete(node: Node) -> str:
    socket = next((each.socket for each in node.answering() if each.status.mode != DEVICE_PLUGIN), None)
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


@question("dra-claims", "A pod stays pending until its claim has devices.")
def claims(node: Node) -> Answer | None:
    """Does each claim of a pod get devices of the DRA driver?"""
    facts = _facts(node)
    if not isinstance(facts, ClusterFacts):
        return facts
    return with_claims([driver.name for driver in _drivers(node)], facts)


QUESTIONS: Final = (published, fields, permissions, device_class, claims)
