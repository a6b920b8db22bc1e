"""Checks of devices that are more than one for one claim: shares, and partitions that consume counters."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import attrs

from ..checks import Checks
from ..verdicts import NotApplicable

if TYPE_CHECKING:
    from .scene import DraScene

CHECKS: Checks[DraScene] = Checks()

PARTITIONS = "DRAPartitionableDevices"


@CHECKS.add(
    22,
    "a share of a device is its own",
    expected="two claims have a share each, with its shareID, and the end of one does not disturb the other",
    rule="a device with allowMultipleAllocations is allocated to several claims at a time",
    cure="key what you keep by device and shareID, name CDI devices by both, and answer the share's id",
)
async def _shares(scene: DraScene) -> str:
    shared = [
        {**device, "pool": each["spec"]["pool"]["name"]}
        for each in await scene.slices()
        for device in each["spec"].get("devices") or ()
        if device.get("allowMultipleAllocations")
    ]
    if not shared:
        raise NotApplicable("the driver publishes no device with allowMultipleAllocations")
    ids = [str(uuid.uuid4()), str(uuid.uuid4())]
    claims = [await scene.claim(scene.result(shared[0], shareID=each)) for each in ids]
    answers = [await scene.prepared(each) for each in claims]
    share_ids = [[device.share_id for device in answer] for answer in answers]
    scene.require(share_ids == [[each] for each in ids], f"the shares are {ids}, the answer has {share_ids}")
    scene.require_resolved((*answers[0], *answers[1]))
    first, second = ({each for device in answer for each in device.cdi_ids} for answer in answers)
    scene.require(not first & second, f"both shares have {', '.join(sorted(first & second))}")
    await scene.unprepared(claims[0])
    scene.require_resolved(answers[1])
    scene.require(await scene.prepared(claims[1]) == answers[1], "the other share's answer has changed")
    await scene.unprepared(claims[1])
    return f"two shares of {shared[0]['name']}"


@CHECKS.add(
    46,
    "counters are published as the server's version has them",
    expected="the counter sets that devices consume are stored, and no write is refused",
    rule="up to 1.34 counters are in the slice of their devices, from 1.35 on in a slice of their own",
    cure="ask the server for its version (/version), and lay the pool out for it",
)
async def _counters(scene: DraScene) -> str:
    api = scene.server.api
    if PARTITIONS not in api.profile.gates:
        await scene.leave()
        api.profile = attrs.evolve(api.profile, gates=api.profile.gates | {PARTITIONS})
        await scene.delete_slices()
        await scene.start_again()
        await scene.published()
    slices: list[Any] = [each["spec"] for each in await scene.slices()]
    sets = {each["name"] for spec in slices for each in spec.get("sharedCounters") or ()}
    used = {
        each["counterSet"]
        for spec in slices
        for device in spec.get("devices") or ()
        for each in device.get("consumesCounters") or ()
    }
    refused = [each for each in scene.writes() if each[1] == 422]
    scene.require(not refused, f"the API server refused {refused[:2]}")
    if not used:
        raise NotApplicable("no device of the driver consumes counters")
    scene.require(used <= sets, f"the devices consume {sorted(used)}, published are {sorted(sets)}")
    together = any(spec.get("sharedCounters") and spec.get("devices") for spec in slices)
    where = "beside their devices" if together else "in a slice of their own"
    scene.require(together == api.profile.kubernetes.startswith("1.34."), f"the counter sets are {where}")
    return f"{len(sets)} counter sets, {where}"
