"""Questions about the DRA drivers of a node: their slices, the classes for them, and the claims on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....errors import printable
from ..answers import Answer, failed, ok, warning
from ..claims import with_claims, with_class
from ..cluster import ClusterFacts
from ..node import counted, some
from ..plain import mapping_in, mappings_in, number_in, string_in
from .facts import asked

if TYPE_CHECKING:
    from .facts import NodeFacts, Object

_NONE: Final = "no DRA driver publishes devices of this node"
_LINE: Final = 300


def _specs(facts: NodeFacts) -> list[Object]:
    return [mapping_in(each.get("spec")) for each in facts.slices.items]


@asked("outside-slices", "The scheduler takes no device of a pool whose slices are not all there.", "slices")
def slices(facts: NodeFacts) -> Answer:
    """Are the ResourceSlices of the node complete?"""
    pools: dict[tuple[str, str], list[Object]] = {}
    for spec in _specs(facts):
        pool = mapping_in(spec.get("pool"))
        pools.setdefault((string_in(spec.get("driver")), string_in(pool.get("name"))), []).append(spec)
    if not pools:
        return ok(_NONE)
    short: list[str] = []
    counts: list[str] = []
    for (driver, name), specs in pools.items():
        newest = max(number_in(mapping_in(spec.get("pool")).get("generation")) for spec in specs)
        of_it = [spec for spec in specs if number_in(mapping_in(spec.get("pool")).get("generation")) == newest]
        expected = max(number_in(mapping_in(spec.get("pool")).get("resourceSliceCount")) for spec in of_it)
        devices = sum(len(mappings_in(spec.get("devices"))) for spec in of_it)
        counts.append(f"{driver}: {counted(devices, 'device')}")
        if len(of_it) < expected:
            short.append(f"{driver}, pool {name}: {len(of_it)} of {counted(expected, 'slice')}")
    if short and not facts.slices.is_cut:
        return failed(
            some(short), "the scheduler takes no device of an incomplete pool; see the answers about its driver's pod"
        )
    return ok(some(counts))


@asked(
    "outside-device-taints", "A tainted device gets no new claim, and some taints evict the pod that has it.", "slices"
)
def taints(facts: NodeFacts) -> Answer:
    """Are the published devices without taints?"""
    found: list[str] = []
    for spec in _specs(facts):
        for device in mappings_in(spec.get("devices")):
            for taint in mappings_in(device.get("taints")):
                words = (
                    f"{string_in(taint.get('key'))}={string_in(taint.get('value'))}:{string_in(taint.get('effect'))}"
                )
                found.append(
                    printable(f"{string_in(device.get('name'))} of {string_in(spec.get('driver'))}: {words}", _LINE)
                )
    if not found:
        return ok(_NONE if not facts.slices.items else "none is tainted")
    remedy = f"the driver taints a device that has failed, and says why: {facts.ask_plugins()}"
    return warning(f"{counted(len(found), 'taint')}: {some(found)}", remedy)


@asked("outside-class", "A claim asks for a class; without one, no claim can ask for the devices.", "slices", "classes")
def device_class(facts: NodeFacts) -> Answer:
    """Is there a DeviceClass for each DRA driver of the node?"""
    drivers = facts.drivers()
    return with_class(drivers, _cluster(facts)) if drivers else ok(_NONE)


@asked("outside-claims", "A pod stays pending until its claim has devices.", "slices", "classes", "claims")
def claims(facts: NodeFacts) -> Answer:
    """Does each claim of a pod on these drivers have devices?"""
    drivers = facts.drivers()
    return with_claims(drivers, _cluster(facts)) if drivers else ok(_NONE)


def _cluster(facts: NodeFacts) -> ClusterFacts:
    return ClusterFacts(
        classes=facts.classes.items,
        claims=facts.claims.items,
        slices=facts.slices.items,
        waiting=facts.waiting.items,
    )


QUESTIONS: Final = (slices, taints, device_class, claims)
