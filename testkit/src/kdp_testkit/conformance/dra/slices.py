"""Checks of ResourceSlices and of health."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ...dra import events, objects
from ...dra.pods import DraPod
from ..checks import Checks
from ..verdicts import NotApplicable

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
    await scene.reported()
    [device] = await scene.some()
    await scene.instance.fail(device["name"])

    def sick() -> bool:
        return scene.kubelet.events.of(events.HealthReceived)[-1].unhealthy > 0

    took = await scene.until(sick, scene.limit(1.0), "the kubelet got no report that the device failed")

    async def tainted() -> bool:
        return any(each.get("taints") for each in await scene.devices())

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
