"""Checks of Prepare and Unprepare, also when a call is slow, a disk is full, or hardware is not released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from ...dra.claims import ClaimEntry
from ...protocol.wire import CallError
from ..checks import Checks, NotApplicable

if TYPE_CHECKING:
    from .scene import DraScene

CHECKS: Checks[DraScene] = Checks()

_MOMENT = 3.0
"""Seconds for which a driver may let a Prepare wait; kdp's would wait for 40."""

_ONE_ENTRY = "exactly one entry for each claim of the request, keyed by its UID; errors are in the entries"


@CHECKS.add(
    12,
    "the answer for a claim's device is valid",
    expected="one device with the request's name, its pool and name, and CDI ids that can be resolved from disk",
    rule="containers get the CDI ids of the devices that serve their requests",
    cure="write the CDI spec before you answer; copy pool, device and request from the allocation's result",
)
async def _one(scene: DraScene) -> str:
    device, claim = await scene.claimed()
    devices = await scene.prepared(claim)
    answered = [(each.requests, each.pool, each.device) for each in devices]
    scene.require(
        answered == [(("r0",), device["pool"], device["name"])], f"r0 has {device['name']}, the answer has {answered}"
    )
    scene.require_resolved(devices)
    await scene.unprepared(claim)
    return f"{device['name']} with {len(devices[0].cdi_ids)} CDI ids"


@CHECKS.add(
    13,
    "one bad claim does not harm the others of the call",
    expected="the call succeeds; the good claim has its device, the bad one an error",
    rule=_ONE_ENTRY,
    cure="catch what is wrong with a claim and put it into that claim's entry; never fail the call",
)
async def _one_of_two(scene: DraScene) -> str:
    device, good = await scene.claimed()
    bad = await scene.claim(scene.result(device), allocated=False)
    answer = await scene.prepare(good, bad)
    scene.require(not answer[good.uid][1], f"the good claim was refused: {answer[good.uid][1]}")
    scene.require(len(answer[good.uid][0]) == 1, "the good claim has no device")
    scene.require(answer[bad.uid][1], "a claim that is not allocated was prepared")
    await scene.unprepared(good, bad)
    return f"the bad one: {answer[bad.uid][1]}"


@CHECKS.add(
    14,
    "a call without claims is answered with none",
    expected="an empty map, and no error",
    rule=_ONE_ENTRY + "; probes of liveness call so",
    cure="answer an empty request with an empty map",
)
async def _none(scene: DraScene) -> str:
    before = scene.specs()
    scene.require(await scene.prepare() == {}, "NodePrepareResources without claims has entries")
    scene.require(await scene.unprepare() == {}, "NodeUnprepareResources without claims has entries")
    scene.require(scene.specs() == before, "CDI specs were changed by calls without claims")
    return "both calls"


@CHECKS.add(
    15,
    "a repeated Prepare has the same answer",
    expected="both answers are the same, and so are the CDI specs",
    rule="a kubelet asks again for what is prepared; up to 1.36 it appends the answer to the old one",
    cure="remember what you answered for a claim's UID, and answer it again without touching the hardware",
)
async def _twice(scene: DraScene) -> str:
    _, claim = await scene.claimed()
    first = await scene.prepared(claim)
    before = scene.specs()
    second = await scene.prepared(claim)
    scene.require(first == second, f"first {first}, then {second}")
    scene.require(scene.specs() == before, f"the specs were {sorted(before)}, then {sorted(scene.specs())}")
    await scene.unprepared(claim)
    return "the same answer"


@CHECKS.add(
    16,
    "a claim that is gone, replaced or not allocated is refused alone",
    expected="each of them gets an error and leaves nothing; the call succeeds, and the other claim is prepared",
    rule="the driver fetches the claim and verifies that it exists, has this UID and is allocated",
    cure="compare the UID of the claim that you fetched with the request's; no state before all is verified",
)
async def _wrong(scene: DraScene) -> str:
    [device] = await scene.some()
    gone = ClaimEntry(namespace="default", name="gone", uid="00000000-0000-4000-8000-000000000001")
    replaced = await scene.claim(scene.result(device))
    replaced.uid = "00000000-0000-4000-8000-000000000002"
    unallocated = await scene.claim(scene.result(device), allocated=False)
    # Without the good one first: the device that it has would be a reason to refuse the others.
    answer = await scene.prepare(gone, replaced, unallocated)
    for claim, what in ((gone, "is gone"), (replaced, "was replaced"), (unallocated, "is not allocated")):
        scene.require(answer[claim.uid][1], f"a claim that {what} was prepared")
    good = await scene.claim(scene.result(device))
    error = (await scene.prepare(gone, good, unallocated))[good.uid][1]
    scene.require(not error, f"the good claim was refused: {error}")
    await scene.unprepared(good)
    scene.server.faults.internal_error(method="GET", times=None)
    failing = await scene.claim_quietly(scene.result(device))
    error = await scene.refused(failing, "a claim that the API server does not return")
    scene.server.faults.clear()
    await scene.unprepared(gone, replaced, unallocated, failing)
    await scene.require_free(device)
    return f"refused: {answer[gone.uid][1]}; {answer[replaced.uid][1]}; {answer[unallocated.uid][1]}; {error}"


@CHECKS.add(
    17,
    "the results of other drivers are left alone",
    expected="only own results are answered; a claim without any succeeds without devices",
    rule="an allocation may have results of several drivers",
    cure="skip every result whose driver is not your own name",
)
async def _others(scene: DraScene) -> str:
    from ...dra import objects

    [device] = await scene.some()
    foreign = objects.result("other.example.com", "theirs", request="r1", pool="theirs")
    mixed = await scene.claim(foreign, scene.result(device))
    devices = await scene.prepared(mixed)
    answered = [each.device for each in devices]
    scene.require(
        answered == [device["name"]], f"asked for {device['name']} and another driver's device, got {answered}"
    )
    alone = await scene.claim(foreign)
    devices = await scene.prepared(alone)
    scene.require(not devices, f"a claim of another driver's device was answered with {devices}")
    await scene.unprepared(mixed, alone)
    return "only its own results were answered"


@CHECKS.add(
    18,
    "a prioritized list's result is answered by the request's own name",
    expected="the answer names request gpu/large as gpu",
    rule="request_names carry the base name; containers refer to that",
    cure="cut the result's request at the slash",
)
async def _prioritized(scene: DraScene) -> str:
    [device] = await scene.some()
    claim = await scene.claim(scene.result(device, request="gpu/large"))
    await _require_requests(scene, claim, "gpu")
    return "gpu/large was answered as gpu"


async def _require_requests(scene: DraScene, claim: ClaimEntry, *names: str) -> None:
    """Prepare and unprepare a claim of one device that must be answered with these names of requests."""
    devices = await scene.prepared(claim)
    answered = [each.requests for each in devices]
    scene.require(answered == [names], f"request_names are {answered}")
    await scene.unprepared(claim)


@CHECKS.add(
    19,
    "the config of other drivers is ignored",
    expected="a claim with another driver's opaque config is prepared",
    rule="config entries are addressed by driver",
    cure="skip every opaque config whose driver is not your own name",
)
async def _config_of_others(scene: DraScene) -> str:
    [device] = await scene.some()
    parameters: dict[str, Any] = {
        "apiVersion": "other.example.com/v1",
        "kind": "Unknown",
        "speed": "none of your business",
    }
    opaque: dict[str, Any] = {"driver": "other.example.com", "parameters": parameters}
    config: list[dict[str, Any]] = [
        {"source": source, "requests": [], "opaque": opaque} for source in ("FromClass", "FromClaim")
    ]
    claim = await scene.claim(scene.result(device), config=config)
    await scene.prepared(claim)
    await scene.unprepared(claim)
    return "prepared all the same"


@CHECKS.add(
    20,
    "a device that another claim has is not given twice",
    expected="the second claim is refused, the first one is not disturbed",
    rule="a claim that was deleted by force may still be prepared when its device is allocated again",
    cure="remember which claim has a device, and refuse others until it is unprepared",
)
async def _busy(scene: DraScene) -> str:
    device, owner, other = await scene.rivals()
    first = await scene.prepared(owner)
    error = await scene.refused(other, f"{device['name']}, which another claim has,")
    await scene.unprepared(other)
    scene.require_resolved(first)
    scene.require(await scene.prepared(owner) == first, "the owner's answer has changed")
    await scene.unprepared(owner)
    await scene.prepared(other)
    await scene.unprepared(other)
    return error


@CHECKS.add(
    21,
    "admin access may have a busy device",
    expected="it is prepared beside its owner, and its Unprepare does not disturb the owner",
    rule="results with adminAccess do not count as use",
    cure="a result with adminAccess must not make a device busy",
)
async def _admin(scene: DraScene) -> str:
    [device] = await scene.some()
    owner, admin = await scene.claim(scene.result(device)), await scene.claim(scene.result(device, adminAccess=True))
    first = await scene.prepared(owner)
    devices = await scene.prepared(admin)
    scene.require([each.device for each in devices] == [device["name"]], f"the answer has {devices}")
    await scene.unprepared(admin)
    scene.require_resolved(first)
    scene.require(await scene.prepared(owner) == first, "the owner's answer has changed")
    await scene.unprepared(owner)
    return "prepared beside its owner"


@CHECKS.add(
    23,
    "two requests of a claim have their own CDI ids",
    expected="each device is answered for its own request, and they share no CDI id",
    rule="a container gets the CDI ids of the requests that it names",
    cure="make one CDI device for each request, and name that request in the answer",
)
async def _two_requests(scene: DraScene) -> str:
    devices = await scene.some(2)
    claim = await scene.claim(*(scene.result(each, request=f"r{index}") for index, each in enumerate(devices)))
    answered = await scene.prepared(claim)
    given = sorted((each.requests, each.device) for each in answered)
    expected = sorted(((f"r{index}",), each["name"]) for index, each in enumerate(devices))
    scene.require(given == expected, f"the answer has {given}")
    scene.require_resolved(answered)
    first, second = (set(each.cdi_ids) for each in answered)
    scene.require(not first & second, f"both requests have {', '.join(sorted(first & second))}")
    await scene.unprepared(claim)
    return "two requests, no common CDI id"


@CHECKS.add(
    25,
    "an Unprepare wins against a Prepare that was cancelled",
    expected="after both the claim is not prepared, and stays so",
    rule="after 45 s the kubelet cancels and may unprepare while the driver is still at work",
    cure="serialize calls for one claim, and let a Prepare that was cancelled leave nothing behind",
)
async def _overtaken(scene: DraScene) -> str:
    device, claim = await scene.claimed()
    scene.server.faults.slow(0.6)
    async with scene.connection() as connection:
        with anyio.move_on_after(10):
            try:
                await connection.prepare([claim], 0.2)
            except CallError:
                pass
            else:
                raise NotApplicable("the driver does not ask the API server for a claim, so Prepare cannot be delayed")
    await scene.unprepared(claim)
    scene.server.faults.clear()
    await scene.elapse(1.0)
    left = {each for each in scene.specs() if claim.uid in each}
    scene.require(not left, f"the unprepared claim left {', '.join(sorted(left))}")
    await scene.require_free(device)
    return "not prepared, and the device is free"


@CHECKS.add(
    27,
    "CDI specs that were lost are written again",
    expected="a Prepare of a prepared claim writes its spec again, with the same ids",
    rule="/var/run is lost at a reboot, the driver's state is not",
    cure="write the spec at every Prepare, also when the claim is already prepared",
)
async def _specs_lost(scene: DraScene) -> str:
    _, claim = await scene.claimed()
    first = await scene.prepared(claim)
    if not any(each.cdi_ids for each in first):
        raise NotApplicable("the driver answers without CDI ids")
    for path in scene.node.cdi.iterdir():
        path.unlink()
    second = await scene.prepared(claim)
    scene.require(first == second, f"first {first}, then {second}")
    scene.require_resolved(second)
    await scene.unprepared(claim)
    return "written again"


@CHECKS.add(
    29,
    "an error names a device that is gone",
    expected="an error for the claim that names the device",
    rule="a device may vanish between its allocation and Prepare",
    cure="look for the device before you prepare it; name it in the error",
)
async def _vanished(scene: DraScene) -> str:
    [device] = await scene.some()
    claim = await scene.claim(scene.result({**device, "name": "no-such-device"}))
    error = await scene.refused(claim, "a device that does not exist")
    scene.require("no-such-device" in error, f"the error does not name the device: {error}")
    await scene.unprepared(claim)
    return error


@CHECKS.add(
    31,
    "a claim that was never prepared is unprepared without error",
    expected="an entry without an error",
    rule="Unprepare comes also for claims whose Prepare failed or never came",
    cure="answer a UID that you do not know with an empty entry",
)
async def _never(scene: DraScene) -> str:
    await scene.unprepared(ClaimEntry(namespace="default", name="never", uid="00000000-0000-4000-8000-000000000003"))
    return "no error"


@CHECKS.add(
    32,
    "a claim that is deleted is unprepared without the API server",
    expected="no error, and the device is free again, though claim and API server are gone",
    rule="everything that Unprepare needs must be in the driver's own state",
    cure="keep what Unprepare needs in your state at Prepare; do not fetch the claim",
)
async def _deleted(scene: DraScene) -> str:
    device, claim = await scene.claimed()
    first = await scene.prepared(claim)
    await scene.drop(claim)
    scene.server.faults.away()
    await scene.unprepared(claim)
    scene.server.faults.back()
    left = {each for device in first for each in device.cdi_ids} & scene.specs()
    scene.require(not left, f"after Unprepare there is still {', '.join(sorted(left))}")
    await scene.require_free(device)
    return "unprepared without claim and API server"


@CHECKS.add(
    33,
    "Unprepare twice, also at the same time, succeeds",
    expected="no error in any of three calls",
    rule="the kubelet retries, and at the same time cleans up after pods that are gone",
    cure="serialize calls for one claim; an Unprepare of an unprepared claim succeeds",
)
async def _unprepared_twice(scene: DraScene) -> str:
    _, claim = await scene.claimed()
    await scene.prepared(claim)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scene.unprepared, claim)
        tasks.start_soon(scene.unprepared, claim)
    await scene.unprepared(claim)
    return "three times"


@CHECKS.add(
    58,
    "a claim of an extended resource is a claim like any other",
    expected="request container-0-request-0 is prepared and answered by that name",
    rule="the scheduler makes such claims for pods that ask for an extended resource",
    cure="assume nothing about the names of claims and requests",
)
async def _extended(scene: DraScene) -> str:
    [device] = await scene.some()
    result = scene.result(device, request="container-0-request-0")
    claim = await scene.claim(result, name="pod-extended-resources-x7k2p")
    await _require_requests(scene, claim, "container-0-request-0")
    return "prepared"


@CHECKS.add(
    60,
    "a Prepare without the API server fails soon",
    expected="an error for the claim in less than 10 s",
    rule="the kubelet waits 45 s, and a pod's other claims with it",
    cure="give requests to the API server a deadline of less than 10 s",
    waits=10.0,
)
async def _unreachable(scene: DraScene) -> str:
    _, claim = await scene.claimed()
    scene.server.faults.slow(60.0)
    began = anyio.current_time()
    error = await scene.refused(claim, "a claim that the API server does not return")
    took = anyio.current_time() - began
    scene.server.faults.clear()
    scene.require(took < 10.0, f"the error came after {took:.1f} s: {error}")
    await scene.unprepared(claim)
    return f"after {took:.1f} s: {error}"


@CHECKS.add(
    24,
    "a Prepare that the kubelet cancels and repeats is done once",
    expected="the second call joins the first or does it anew, with one result, and the hardware is touched once",
    rule="after 45 s the kubelet gives up, and asks again while the driver may still be at work",
    cure="serve one call for a claim at a time, and let the next call use its result",
)
async def _given_up(scene: DraScene) -> str:
    device, claim = await scene.claimed()
    before = scene.instance.preparations()
    scene.server.faults.slow(0.6)
    async with scene.connection() as connection:
        try:
            await connection.prepare([claim], 0.2)
        except CallError:
            pass
        else:
            raise NotApplicable("the driver does not ask the API server for a claim, so Prepare cannot be delayed")
    first = await scene.prepared(claim)
    scene.server.faults.slow(0.0)
    await scene.elapse(0.8)
    second = await scene.prepared(claim)
    scene.require(first == second, f"the second call was answered with {first}, a later one with {second}")
    scene.require_resolved(second)
    after = scene.instance.preparations()
    if before is not None and after is not None:
        scene.require(after - before == 1, f"the hardware was prepared {after - before} times")
    await scene.unprepared(claim)
    left = {each for each in scene.specs() if claim.uid in each}
    scene.require(not left, f"the unprepared claim left {', '.join(sorted(left))}")
    await scene.require_free(device)
    return "one result" if after is None else "one result, hardware touched once"


@CHECKS.add(
    30,
    "a CDI spec that cannot be written is an error",
    expected="an error for the claim, which is prepared when the directory can be written again",
    rule="a container whose CDI ids cannot be resolved is not made, and nobody asks the driver again",
    cure="answer with devices only when the spec is on the disk, and only then save that the claim is complete",
)
async def _unwritable(scene: DraScene) -> str:
    devices = await scene.some(2)
    good = await scene.claim(scene.result(devices[0]))
    if not any(each.cdi_ids for each in await scene.prepared(good)):
        raise NotApplicable("the driver answers without CDI ids")
    claim = await scene.claim(scene.result(devices[1]))
    cdi = scene.node.cdi
    aside = cdi.with_name("cdi-aside")
    cdi.rename(aside)
    cdi.write_text("nothing can be written here, not even by root")
    try:
        error = await scene.refused(claim, "a claim whose CDI spec cannot be written")
    finally:
        cdi.unlink()
        aside.rename(cdi)
    await scene.kill()
    await scene.start_again()
    scene.require_resolved(await scene.prepared(claim))
    await scene.unprepared(claim, good)
    scene.require(not list(cdi.iterdir()), f"{[path.name for path in cdi.iterdir()]} is left in {cdi}")
    return error


@CHECKS.add(
    34,
    "a pod ends although its hardware cannot be released",
    expected=(
        "Unprepare succeeds while the release fails; no other claim gets the device then, and one gets it afterwards"
    ),
    rule="until Unprepare succeeds the pod is Terminating, and its node cannot be drained to repair the hardware",
    cure="save that the release is owed, answer, and repeat it; refuse claims with the device until it has succeeded",
)
async def _jammed(scene: DraScene) -> str:
    device, claim, other = await scene.rivals()
    await scene.prepared(claim)
    await scene.instance.block_release(True)
    began = anyio.current_time()
    await scene.unprepared(claim)
    took = anyio.current_time() - began
    error = await _refusal(scene, other)
    scene.require(error is not None, f"{device['name']}, which could not be given back, was prepared")
    await scene.instance.block_release(False)

    async def is_free() -> bool:
        return await _refusal(scene, other) is None

    await scene.until(is_free, scene.limit(20.0), "the device that could be given back is refused to the next claim")
    await scene.unprepared(other)
    await scene.require_free(device)
    return f"Unprepare took {took:.1f} s; {error}"


async def _refusal(scene: DraScene, claim: ClaimEntry) -> str | None:
    """Prepare a claim, and return the error; the driver may also let the kubelet wait. `None` if it is prepared."""
    async with scene.connection() as driver:
        try:
            _, error = (await driver.prepare([claim], _MOMENT))[claim.uid]
        except CallError as late:
            return str(late)
    return error or None
