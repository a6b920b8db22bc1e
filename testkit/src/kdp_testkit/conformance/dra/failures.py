"""Checks of claims when something fails: a slow call, a full disk, hardware that cannot be released."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.wire import CallError
from ..checks import Checks
from ..verdicts import NotApplicable

if TYPE_CHECKING:
    from .scene import DraScene

CHECKS: Checks[DraScene] = Checks()


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
    "a failed release of hardware is retried",
    expected="Unprepare fails while the release fails, no other claim gets the device, and a later Unprepare succeeds",
    rule="the kubelet asks again for ever; what the driver forgets is never given back",
    cure="answer with the error, keep the state, and release at the next call",
)
async def _jammed(scene: DraScene) -> str:
    device, claim, other = await scene.rivals()
    await scene.prepared(claim)
    await scene.instance.block_release(True)
    error = (await scene.unprepare(claim))[claim.uid]
    scene.require(error, "the hardware could not be given back, and Unprepare succeeded")
    await scene.refused(other, f"{device['name']}, which could not be given back,")
    await scene.instance.block_release(False)
    await scene.unprepared(claim)
    await scene.unprepared(other)
    await scene.require_free(device)
    return error
