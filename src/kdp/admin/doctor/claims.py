"""Why a pod's claim has no devices, as the API server's objects show it. Without I/O."""

from __future__ import annotations

import functools
import json
import re
import time
from typing import TYPE_CHECKING, Any, Final

from ...errors import printable
from ...model.spelling import hint
from .answers import Answer, failed, not_known, ok, quoted, warning
from .node import counted, some
from .plain import mapping_in, mappings_in, metadata_of, name_of, path_of, seconds_since, string_in
from .selectors import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .cluster import ClusterFacts

    Object = Mapping[str, Any]

WAITED: Final = 30.0
"""Seconds for which a pod's claim may be without devices, and without a reason: a scheduler needs a moment."""

_LINE: Final = 300


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
        return failed(seen, f"make one: {_make_class(without[0])}")
    return ok(some([f"{driver}: {some(classes)}" for driver, classes in names.items()]))


def _make_class(driver: str) -> str:
    """Return the command that makes the DeviceClass of a driver, as the driver's manifests have it."""
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    item = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": driver},
        "spec": {"selectors": [selector]},
    }
    return f"echo {quoted(json.dumps(item))} | kubectl apply -f -"


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
    return [
        name_of(each)
        for each in facts.classes
        if any(how(driver, text) for text in _expressions(mapping_in(each.get("spec"))))
    ]


def _expressions(selecting: Object) -> Iterator[str]:
    for selector in mappings_in(selecting.get("selectors")):
        yield string_in(mapping_in(selector.get("cel")).get("expression"))


def with_claims(drivers: Sequence[str], facts: ClusterFacts) -> Answer:
    """Return whether each pod's claim on these drivers has devices. Each claim without devices gets its own reason."""
    classes = {name_of(each): mapping_in(each.get("spec")) for each in facts.classes}
    ours = {name for driver in drivers for name in _classes_of(driver, facts)}
    said = {path_of(pod): scheduler_says(pod) for pod in facts.waiting}

    @functools.cache  # the claims of one template have the same selectors
    def unmatched(expressions: tuple[str, ...]) -> str:
        return printable(fault_of(expressions, facts.slices), _LINE) if facts.slices else ""

    told: list[tuple[str, str]] = []
    young: list[str] = []
    for claim in filter(_waits, facts.claims):
        asked = {name for name, _ in _requests(claim)}
        lost = sorted(asked - classes.keys())
        if not lost and asked.isdisjoint(ours):
            continue
        age = seconds_since(metadata_of(claim).get("creationTimestamp"), time.time()) or 0.0
        if lost:
            reason = _no_class(lost, classes)
        else:
            selectors = ((*_expressions(classes[name]), *_expressions(each)) for name, each in _requests(claim))
            reason = next((fault for each in selectors if (fault := unmatched(each))), "")
        remedy = _correct(claim) if reason else f"see what the scheduler says: {_describe_pod(claim)}"
        if lost:
            remedy = f"make the class, as kdp manifests writes it, or {remedy}"
        reason = reason or printable(said.get(f"{_namespace_of(claim)}/{_pod_of(claim)}", ""), _LINE)
        if not reason and age <= WAITED:
            young.append(f"{path_of(claim)} is {age:.0f} s old")
            continue
        told.append((f"{path_of(claim)}: {reason or f'without devices for {age:.0f} s'}", remedy))
    if told:
        seen = f"{counted(len(told), 'claim')} without devices: {some([words for words, _ in told])}"
        return warning(seen, told[0][1])
    return ok(f"the scheduler has not answered yet: {some(young)}" if young else "no claim of a pod waits")


def _waits(claim: Object) -> bool:
    """Return whether a pod's claim has no devices."""
    if metadata_of(claim).get("deletionTimestamp") or mapping_in(claim.get("status")).get("allocation"):
        return False
    return any(owner.get("kind") == "Pod" for owner in _owners(claim))


def _no_class(lost: Sequence[str], known: Iterable[str]) -> str:
    slip = hint(lost[0], known) if len(lost) == 1 else ""
    return f"there is no DeviceClass {some(lost)}{f'; {slip}' if slip else ''}"


def _correct(claim: Object) -> str:
    look = f"kubectl -n {quoted(_namespace_of(claim))} get resourceclaim {quoted(name_of(claim))} -o yaml"
    return f"correct it in the claim, or in its template: {look}; kubectl get deviceclasses"


def _pod_of(claim: Object) -> str:
    return next((string_in(each.get("name")) for each in _owners(claim) if each.get("kind") == "Pod"), "")


def _describe_pod(claim: Object) -> str:
    return f"kubectl -n {quoted(_namespace_of(claim))} describe pod {quoted(_pod_of(claim))}"


def _namespace_of(item: Object) -> str:
    return string_in(metadata_of(item).get("namespace"))


def _owners(claim: Object) -> list[Object]:
    return mappings_in(metadata_of(claim).get("ownerReferences"))


def _requests(claim: Object) -> Iterator[tuple[str, Object]]:
    """Yield the class and the selectors of each request of a claim."""
    devices = mapping_in(mapping_in(claim.get("spec")).get("devices"))
    for request in mappings_in(devices.get("requests")):
        for each in (mapping_in(request.get("exactly")), *mappings_in(request.get("firstAvailable"))):
            if name := string_in(each.get("deviceClassName")):
                yield name, each


def scheduler_says(pod: Object) -> str:
    """Return why the scheduler has no node for a pod. Empty if it has not said so."""
    conditions = mappings_in(mapping_in(pod.get("status")).get("conditions"))
    words = [string_in(each.get("message")) for each in conditions if each.get("type") == "PodScheduled"]
    return next((each for each in words if each), "")


def drivers_of(pod: Object, claims: Sequence[Object]) -> list[str]:
    """Return the DRA drivers of the devices that a pod's claims have."""
    given = mappings_in(mapping_in(pod.get("spec")).get("resourceClaims"))
    made = mappings_in(mapping_in(pod.get("status")).get("resourceClaimStatuses"))
    named = {string_in(each.get("resourceClaimName")) for each in (*given, *made)}
    paths = {f"{_namespace_of(pod)}/{name}" for name in named if name}
    held = [mapping_in(each.get("status")) for each in claims if path_of(each) in paths]
    devices = [mapping_in(mapping_in(status.get("allocation")).get("devices")) for status in held]
    results = [result for each in devices for result in mappings_in(each.get("results"))]
    return list(filter(None, dict.fromkeys(string_in(each.get("driver")) for each in results)))
