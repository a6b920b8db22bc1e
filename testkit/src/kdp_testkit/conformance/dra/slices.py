"""Checks of ResourceSlices and of health, also when not all is well.

There may be no devices, a new Node, and fields or writes that are refused.
"""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from ...dra import events, objects
from ...dra.pods import DraPod
from ..checks import Checks, NotApplicable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .scene import DraScene

CHECKS: Checks[DraScene] = Checks()


@CHECKS.add(
    39,
    "a pool is complete and is not written without need",
    expected="one generation, as many slices as each slice declares, no device twice, and no write while nothing "
    "changes",
    rule="the scheduler uses a pool only when all slices of the newest generation are there",
    cure="write only what differs from what the API server has",
)
async def _complete(scene: DraScene) -> str:
    await scene.published()
    # A slice of counters has no devices.
    names = [
        (each["spec"]["pool"]["name"], device["name"])
        for each in await scene.slices()
        for device in each["spec"].get("devices") or ()
    ]
    scene.require(len(names) == len(set(names)), "a device is published twice")
    await scene.elapse(0.5)
    before = len(scene.writes())
    await scene.elapse(2.0)
    more = scene.writes()[before:]
    scene.require(not more, f"in 2 s without a change there were {len(more)} writes: {more[:3]}")
    return f"{len(names)} devices in {len(await scene.slices())} slices, no write in 2 s"


@CHECKS.add(
    41,
    "a slice that somebody deletes is written again",
    expected="it is back in less than 3 s",
    rule="kubelets delete slices, also those of a running driver",
    cure="watch your own slices; do not trust a cache of what you wrote",
)
async def _deleted(scene: DraScene) -> str:
    victim = (await scene.slices())[0]
    devices = sorted(each["name"] for each in await scene.devices())
    took = 0.0
    for _ in range(2):  # the second time just after the driver's own write
        for each in await scene.slices():
            await scene.server.ask("DELETE", f"{objects.SLICES}/{each['metadata']['name']}")

        async def again() -> bool:
            return sorted(each["name"] for each in await scene.devices()) == devices

        took = await scene.until(again, scene.limit(3.0), "the slices that were deleted were not written again")
    await scene.published()
    return f"{victim['metadata']['name']} was back after {took:.2f} s"


def _undated(devices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return devices without the time at which the API server has seen each taint first."""
    return [
        {
            **device,
            "taints": [{k: v for k, v in taint.items() if k != "timeAdded"} for taint in device.get("taints") or ()],
        }
        for device in devices
    ]


@CHECKS.add(
    42,
    "a foreign edit of a slice is reverted",
    expected="the devices are restored in less than 3 s, also after a conflict",
    rule="only the driver decides what its slices contain",
    cure="compare what you see with what you want; at 409 read again and write again",
)
async def _edited(scene: DraScene) -> str:
    before = _undated(await scene.devices())
    if not before:
        raise NotApplicable("the driver publishes no device")
    victim = copy.deepcopy(next(each for each in await scene.slices() if each["spec"].get("devices")))
    victim["spec"]["devices"] = [{"name": "foreign"}]
    victim["spec"]["pool"]["resourceSliceCount"] = len(await scene.slices())
    conflict = "Operation cannot be fulfilled: the object has been modified"
    scene.server.faults.refused(409, conflict, method="PUT")
    await scene.write_as_other(victim)

    async def reverted() -> bool:
        return _undated(await scene.devices()) == before

    took = await scene.until(reverted, scene.limit(3.0), "the foreign edit was not reverted")
    scene.server.faults.clear()
    return f"reverted after {took:.2f} s"


@CHECKS.add(
    47,
    "the driver survives what watches and API servers do",
    expected=(
        "after 410, broken watches and an API server that was away, a deleted slice is back, and none is there twice"
    ),
    rule="watches end or fail with 410, and miss the changes in between",
    cure="list anew at 410; connect again with growing pauses of some seconds at most",
)
async def _watches(scene: DraScene) -> str:
    devices = sorted(each["name"] for each in await scene.devices())

    async def as_before() -> bool:
        return sorted(each["name"] for each in await scene.devices()) == devices

    for what, break_ in (
        ("after 410", scene.server.faults.expire_watches),
        ("after a broken watch", scene.server.faults.drop_watches),
    ):
        break_()
        await scene.delete_slices()
        await scene.until(as_before, scene.limit(3.0), f"{what} a deleted slice was not written again")
    scene.server.faults.away()
    await scene.elapse(1.0)
    scene.server.faults.back()
    await scene.delete_slices()
    took = await scene.until(
        as_before, scene.limit(6.0), "after the API server was away a deleted slice was not written"
    )
    await scene.published()
    return f"after an API server that was away: {took:.2f} s"


@CHECKS.add(
    49,
    "slices stay when the driver ends",
    expected="after SIGTERM they are as they were, and a successor within 30 s writes none anew",
    rule="an update must keep the devices schedulable; the kubelet deletes the slices of a driver that stays away",
    cure="do not delete slices at the end",
)
async def _ended(scene: DraScene) -> str:
    before = await scene.slices()
    await scene.stop()
    scene.require(await scene.slices() == before, "the slices were changed or deleted at the end")
    await scene.unregistered()
    await scene.start()
    await scene.registered()
    await scene.elapse(1.5)
    now = {each["metadata"]["uid"] for each in await scene.slices()}
    scene.require(now == {each["metadata"]["uid"] for each in before}, "the successor wrote slices anew")
    return f"{len(before)} slices stayed"


# -- health ------------------------------------------------------------------------------------------------------------


@CHECKS.add(
    50,
    "a new health stream has all devices at once",
    expected="one report with every device of the pool, also on the next stream",
    rule="the kubelet starts each stream without any device, and shows a device that the report lacks as Unknown",
    cure="send the complete list as the first message of every stream",
)
async def _snapshot(scene: DraScene) -> str:
    report = await scene.reported()
    count = len(await scene.devices())

    def device_count(each: Any) -> int:
        return int(each.healthy + each.unhealthy + each.unknown)

    # Of devices that are not published there may be a word as well.
    scene.require(device_count(report) >= count, f"the report has {device_count(report)} of {count} devices")
    before = len(scene.kubelet.events.of(events.HealthReceived))
    scene.kubelet.faults.end_health_streams(scene.driver)
    await scene.until(
        lambda: len(scene.kubelet.events.of(events.HealthReceived)) > before,
        scene.limit(1.0),
        "no report came on the next stream",
    )
    again = scene.kubelet.events.of(events.HealthReceived)[-1]
    scene.require(
        device_count(again) >= count, f"the next stream's report has {device_count(again)} of {count} devices"
    )
    [device] = await scene.some()
    pod = DraPod(claims={"health": "health"})  # 1.34 tells only of a claim that its pod calls by its name
    claim = await scene.claim(scene.result(device), pods=[pod], name="health")
    await scene.kubelet.start_pod(pod)
    health = {state for resources in scene.kubelet.health(pod)["main"].values() for state, _ in resources.values()}
    scene.require(health == {"Healthy"}, f"the pod's status says {health} of {device['name']}")
    await scene.kubelet.stop_pod(pod)
    await scene.drop(claim)
    return f"{count} devices on both streams"


@CHECKS.add(
    51,
    "a driver without health advertises none, and keeps an unexpected health stream open",
    expected="no service of health in GetInfo, and up to 1.36 a silent stream that does not end",
    rule="up to 1.36 a stream that ends is opened again every 5 s for ever",
    cure="serve v1alpha1.DRAResourceHealth by waiting until it is cancelled; do not answer Unimplemented",
)
async def _without(scene: DraScene) -> str:
    if scene.has_health_service:
        raise NotApplicable("the driver advertises health")
    await scene.elapse(1.0)
    ended = scene.kubelet.events.of(events.HealthStreamEnded)
    scene.require(not ended, f"the stream ended {len(ended)} times in 1 s: {ended[0].code if ended else ''}")
    return f"{len(scene.kubelet.events.of(events.HealthStreamOpened))} streams, all open"


@CHECKS.add(
    52,
    "an unhealthy device is reported to the kubelet and kept from new claims",
    expected="the pod's status says Unhealthy, the device has a taint, and both go with its recovery",
    rule="the kubelet evicts no pod; the driver must keep pods away from a device",
    cure="send the change at once, and publish the device with a taint while it lasts",
    levers=("fail", "heal"),
)
async def _unhealthy(scene: DraScene) -> str:
    known = (await scene.reported()).unhealthy  # other devices may be unhealthy all the time
    [device] = await scene.some()
    await scene.instance.fail(device["name"])

    def sick() -> bool:
        return scene.kubelet.events.of(events.HealthReceived)[-1].unhealthy > known

    took = await scene.until(sick, scene.limit(1.0), "the kubelet got no report that the device failed")

    async def tainted() -> bool:
        return any(each.get("taints") for each in await scene.devices() if each["name"] == device["name"])

    keeps = "DRADeviceTaints" in scene.server.api.profile.gates
    if keeps:
        await scene.until(tainted, scene.limit(3.0), "the failed device got no taint")
    await scene.instance.heal(device["name"])
    await scene.until(
        lambda: not sick(), scene.limit(1.0), "the kubelet got no report that the device is healthy again"
    )

    async def clean() -> bool:
        return not await tainted()

    await scene.until(clean, scene.limit(3.0), "the device is healthy and still has its taint")
    return f"reported after {took:.2f} s" + ("" if keeps else "; this version drops taints")


@CHECKS.add(
    40,
    "a change of one device takes one write",
    expected="exactly one PUT, and the pool's generation stays",
    rule="a change within one slice needs no new generation",
    cure="write only the slice whose devices changed",
    levers=("fail", "heal"),
)
async def _one_write(scene: DraScene) -> str:
    if "DRADeviceTaints" not in scene.server.api.profile.gates:
        raise NotApplicable("this version drops taints, so that a failing device changes no slice")
    [device] = await scene.some()
    generation = (await scene.slices())[0]["spec"]["pool"]["generation"]
    before = len(scene.writes())
    await scene.instance.fail(device["name"])
    await scene.until(
        lambda: len(scene.writes()) > before, scene.limit(3.0), "no slice was written after a device failed"
    )
    await scene.elapse(1.0)
    written = scene.writes()[before:]
    scene.require(len(written) == 1 and written[0][0].startswith("PUT"), f"the writes were {written}")
    now = (await scene.slices())[0]["spec"]["pool"]["generation"]
    scene.require(now == generation, f"the generation was {generation} and is {now}")
    return "one PUT"


TAINTS = "DRADeviceTaints"
DENIAL = "the slice's node is not the one of the driver's token"


async def _names(scene: DraScene) -> list[str]:
    return sorted(each["name"] for each in await scene.devices())


async def _settled(scene: DraScene, devices: list[Any], otherwise: str) -> float:
    async def is_so() -> bool:
        return _undated(await scene.devices()) == _undated(devices)

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
    path = f"{objects.NODES}/{scene.node.name}"

    async def belong() -> bool:
        uid = (await scene.server.ask("GET", path))["metadata"]["uid"]
        found = await scene.slices()
        owners = [[each["uid"] for each in item["metadata"].get("ownerReferences", ())] for item in found]
        return bool(found) and all(each == [uid] for each in owners)

    scene.require(await belong(), "the Node does not own the slices")
    await scene.server.ask("DELETE", path)
    await scene.server.ask("POST", objects.NODES, objects.node(scene.node.name))

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
    # The driver withholds tainted devices, too.
    before = [each for each in await scene.devices() if not each.get("taints")]
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
    reports = scene.kubelet.events.of(events.HealthReceived)
    known = reports[-1].unhealthy if reports else 0
    [device] = await scene.some()
    count, flips, began = len(scene.writes()), 0, time.monotonic()
    while time.monotonic() - began < 2.0:
        await scene.instance.fail(device["name"])
        await anyio.sleep(_FLIP)
        await scene.instance.heal(device["name"])
        await anyio.sleep(_FLIP)
        flips += 1
    took = time.monotonic() - began
    written = len(scene.writes()) - count
    scene.require(written <= 2 * took + 2, f"{flips} flips in {took:.1f} s were {written} writes")
    await _settled(scene, before, "after the flips the devices are not published as before")
    reports = scene.kubelet.events.of(events.HealthReceived)
    if reports:
        await scene.until(
            lambda: scene.kubelet.events.of(events.HealthReceived)[-1].unhealthy <= known,
            scene.limit(1.0),
            "after the flips the kubelet's last report has the device unhealthy",
        )
    return f"{flips} flips, {written} writes"


_FLIP = 0.02
"""Seconds between two changes: long enough for a write, also on a busy machine."""


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
    path = f"{objects.NODES}/{scene.node.name}"

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
