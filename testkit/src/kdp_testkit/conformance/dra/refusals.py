"""Checks of what a driver publishes when not all is well: no devices, a new node, fields or writes that are refused."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from ...dra import events, objects
from ..checks import Checks
from ..verdicts import NotApplicable
from .node import NODES

if TYPE_CHECKING:
    from .scene import DraScene

CHECKS: Checks[DraScene] = Checks()

TAINTS = "DRADeviceTaints"
DENIAL = "the slice's node is not the one of the driver's token"


async def _names(scene: DraScene) -> list[str]:
    return sorted(each["name"] for each in await scene.devices())


async def _settled(scene: DraScene, devices: list[Any], otherwise: str) -> float:
    async def is_so() -> bool:
        return await scene.devices() == devices

    return await scene.until(is_so, scene.limit(3.0), otherwise)


@CHECKS.add(
    38,
    "a node without devices has an empty pool",
    expected="when all devices vanish the pool is complete and empty, and not gone",
    rule="an empty pool shows a running driver without devices; a missing pool shows nothing",
    cure="publish one slice without devices, with resourceSliceCount 1",
    levers=("vanish", "add"),
)
async def _empty(scene: DraScene) -> str:
    before = await _names(scene)
    for name in before:
        await scene.instance.vanish(name)

    async def is_empty() -> bool:
        return not await scene.devices()

    await scene.until(is_empty, scene.limit(3.0), "the devices vanished, and are still published")
    await scene.published(otherwise="without devices there is no complete pool")
    await scene.elapse(0.5)
    count = len(await scene.slices())
    scene.require(count, "without devices the slice was deleted")
    for name in before:
        await scene.instance.add(name)

    async def are_back() -> bool:
        return await _names(scene) == before

    await scene.until(are_back, scene.limit(3.0), "the devices came back, and are not published")
    return f"{count} slices without devices"


@CHECKS.add(
    43,
    "slices belong to the current Node object",
    expected="the Node owns the slices; if the Node is created anew, the new one owns them, and they stay",
    rule="the garbage collector deletes what belongs to a Node that is gone, by its UID",
    cure="read the Node's UID again when your slices are deleted, and every few minutes",
)
async def _new_node(scene: DraScene) -> str:
    path = f"{NODES}/{scene.node.name}"

    async def belong() -> bool:
        uid = (await scene.server.ask("GET", path))["metadata"]["uid"]
        found = await scene.slices()
        owners = [[each["uid"] for each in item["metadata"].get("ownerReferences", ())] for item in found]
        return bool(found) and all(each == [uid] for each in owners)

    scene.require(await belong(), "the Node does not own the slices")
    await scene.server.ask("DELETE", path)
    await scene.server.ask("POST", NODES, objects.node(scene.node.name))

    async def last() -> bool:
        scene.server.collect_garbage()
        return await belong()

    took = await scene.until(last, scene.limit(3.0), "the new Node does not own the slices")
    await scene.published()
    return f"the new owner's after {took:.2f} s"


@CHECKS.add(
    44,
    "fields that the server drops are reported, and a device that needs them is not published",
    expected=(
        "without the gate for taints the driver withholds a failed device, names the gate, and does not repeat its "
        "writes"
    ),
    rule="a server with a gate off silently removes the gate's fields",
    cure="compare what you sent with what was stored, name the gate, and publish no device that needed the field",
    levers=("fail", "heal"),
)
async def _dropped(scene: DraScene) -> str:
    api = scene.server.api
    before = await scene.devices()
    [device] = await scene.some()
    gates = api.profile
    api.profile = attrs.evolve(gates, gates=gates.gates - {TAINTS})
    count = len(scene.writes())
    await scene.instance.fail(device["name"])
    until = time.monotonic() + max(scene.limit(1.0), 3.0)  # a driver may gather changes for a second
    while len(scene.writes()) == count:
        if time.monotonic() > until:
            raise NotApplicable("the driver writes no slice when a device fails")
        await scene.elapse(0.05)

    async def withheld() -> bool:
        return device["name"] not in await _names(scene)

    await scene.until(withheld, scene.limit(3.0), f"{device['name']} failed, and is offered without a taint")
    await scene.until(lambda: TAINTS in scene.instance.output(), scene.limit(1.0), f"the gate {TAINTS} is not named")
    await scene.elapse(0.5)
    count = len(scene.writes())
    await scene.elapse(2.0)
    more = scene.writes()[count:]
    scene.require(len(more) <= 1, f"in 2 s without a change there were {len(more)} writes")
    await scene.instance.heal(device["name"])
    await _settled(scene, before, "the device is healthy again, and not published as before")
    api.profile = gates
    return f"{device['name']} was withheld"


@CHECKS.add(
    48,
    "a device that flips does not flood the API server",
    expected="about one write a second while it flips, and the correct state at the end",
    rule="thousands of nodes share one API server",
    cure="collect changes for a second, then write the newest state",
    levers=("fail", "heal"),
)
async def _flips(scene: DraScene) -> str:
    before = await scene.devices()
    [device] = await scene.some()
    count, flips, began = len(scene.writes()), 0, time.monotonic()
    while time.monotonic() - began < 2.0:
        await scene.instance.fail(device["name"])
        await anyio.sleep(0.005)
        await scene.instance.heal(device["name"])
        await anyio.sleep(0.005)
        flips += 1
    took = time.monotonic() - began
    written = len(scene.writes()) - count
    scene.require(written <= 2 * took + 2, f"{flips} flips in {took:.1f} s were {written} writes")
    await _settled(scene, before, "after the flips the devices are not published as before")
    reports = scene.kubelet.events.of(events.HealthReceived)
    if reports:
        await scene.until(
            lambda: not scene.kubelet.events.of(events.HealthReceived)[-1].unhealthy,
            scene.limit(1.0),
            "after the flips the kubelet's last report has the device unhealthy",
        )
    return f"{flips} flips, {written} writes"


@CHECKS.add(
    56,
    "a denied write is reported, and retried with growing pauses",
    expected="the driver logs the denial's text, retries with growing pauses, and writes the slices when they are "
    "allowed",
    rule="a ValidatingAdmissionPolicy denies slices of other nodes, and a wrong one denies all",
    cure="wait longer after each denial, up to a minute; log the server's own text",
)
async def _denied(scene: DraScene) -> str:
    await scene.leave()
    await scene.delete_slices()
    scene.server.api.admission = lambda operation, item: DENIAL
    count = len(scene.writes())
    await scene.start_again()
    await scene.until(lambda: len(scene.writes()) > count, scene.limit(3.0), "no slice was written")
    await scene.elapse(3.0)
    written = len(scene.writes()) - count
    scene.require(written <= 8, f"in 3 s there were {written} writes, all denied")
    await scene.until(
        lambda: DENIAL in scene.instance.output(), scene.limit(1.0), "the text of the denial was not logged"
    )
    scene.server.api.admission = None
    took = await scene.published(scene.limit(6.0))
    return f"{written} writes in 3 s, and published {took:.1f} s after it was allowed"


@CHECKS.add(
    57,
    "nothing is published beside a device plugin",
    expected="while the node has the device plugin's resource, the driver publishes no slice, and reports the reason",
    rule="the scheduler counts the two protocols separately, and would allocate each device twice",
    cure=("read the Node's status.allocatable before you publish, and wait until it shows 0 of your extended resource"),
)
async def _beside(scene: DraScene) -> str:
    name = scene.subject.extended()
    if not name:
        raise NotApplicable("the driver's extended resource was not given (--extended-resource)")
    path = f"{NODES}/{scene.node.name}"

    async def allocatable(amount: str) -> None:
        item = await scene.server.ask("GET", path)
        item["status"] = {"allocatable": {name: amount}, "capacity": {name: amount}}
        await scene.server.ask("PUT", f"{path}/status", item)

    await scene.leave()
    await scene.delete_slices()
    await allocatable("2")
    await scene.start_again()
    await scene.until(lambda: name in scene.instance.output(), scene.limit(1.0), f"the log does not mention {name}")
    await scene.elapse(1.5)
    scene.require(not await scene.slices(), f"slices were published while the node has 2 of {name}")
    await allocatable("0")
    took = await scene.published(scene.limit(5.0), f"the node has 0 of {name}, and nothing was published")
    return f"published {took:.1f} s after the node had 0 of {name}"
