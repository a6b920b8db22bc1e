"""Checks of two instances at once: a rolling update in which the new pod begins before the old one ends."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from ...protocol.wire import CallError
from ..checks import Checks
from ..verdicts import NotApplicable

if TYPE_CHECKING:
    from ..instance import Instance
    from .scene import DraScene

CHECKS: Checks[DraScene] = Checks()

_UIDS = "0b7ad0a2-52d5-4c47-8f5c-4b1d3a4cf001", "0b7ad0a2-52d5-4c47-8f5c-4b1d3a4cf002"
_RACES = 3


async def _overlapping(scene: DraScene) -> tuple[tuple[Instance, str], tuple[Instance, str]]:
    """Return two instances in pods of their own, the older one first, each with its endpoint.

    Raises:
        NotApplicable: The driver has the same socket in every pod.
    """
    endpoints: list[str] = []
    for uid in _UIDS:
        await scene.leave()
        await scene.start_again(pod_uid=uid)
        endpoints.append(scene.endpoint)
    if endpoints[0] == endpoints[1]:
        raise NotApplicable(
            f"the driver is at {endpoints[0]} whatever POD_UID is: its pods cannot overlap, and must not have maxSurge"
        )
    older = scene.instance
    await scene.start(pod_uid=_UIDS[0])
    await scene.until(
        lambda: sorted(scene.kubelet.registered().get(scene.driver, ())) == sorted(endpoints),
        scene.limit(3.0),
        f"two instances were not registered together; registered were {dict(scene.kubelet.registered())}",
    )
    return (older, endpoints[1]), (scene.instance, endpoints[0])


@CHECKS.add(
    9,
    "two instances serve the same claims, and one of them ends without harm",
    expected="each sees what the other has prepared, no device is given twice, and sockets and slices stay",
    rule="an update with maxSurge runs two pods, and the kubelet may call either of them",
    cure="keep the state in files, take a lock of the whole node for each call, name sockets by the pod's UID",
)
async def _overlap(scene: DraScene) -> str:
    [device] = await scene.some()
    before = await scene.slices()
    (older, old), (_, new) = await _overlapping(scene)
    claim, other = await scene.claim(scene.result(device)), await scene.claim(scene.result(device))
    first, second = await scene.prepared(claim, at=old), await scene.prepared(claim, at=new)
    scene.require(first == second, f"one instance answered {first}, the other {second}")
    await scene.unprepared(claim, at=new)
    await scene.prepared(other, at=old)
    await scene.unprepared(other, at=new)
    scene.server.faults.slow(0.05)
    for _ in range(_RACES):
        errors: list[str] = []

        async def race(at: str, claim_index: int, errors: list[str] = errors) -> None:
            raced = (claim, other)[claim_index]
            errors.append((await scene.prepare(raced, at=at))[raced.uid][1])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(race, old, 0)
            tasks.start_soon(race, new, 1)
        scene.require(
            sum(not each for each in errors) == 1,
            f"of two claims for one device {sum(not e for e in errors)} were prepared",
        )
        await scene.unprepared(claim, at=new)
        await scene.unprepared(other, at=old)
    scene.server.faults.slow(0.0)
    kept = await scene.prepared(claim, at=old)
    await scene.stop(older)
    await scene.until(
        lambda: scene.kubelet.registered().get(scene.driver) == [new],
        scene.limit(1.0),
        "after the end of the older instance the other one alone should be registered",
    )
    scene.require(await scene.prepared(claim) == kept, "the instance that stayed answers the claim in another way")
    await scene.unprepared(claim)
    scene.require(await scene.slices() == before, "the slices were changed by an update that changes no device")
    return f"{_RACES} races, and slices and sockets stayed"


@CHECKS.add(
    10,
    "the lock of a killed instance does not block the other one",
    expected="when an instance is killed in a call, the other one's next call goes on at once",
    rule="only the kernel gives back what a killed process held",
    cure="lock with fcntl or flock on an open file, never by the existence of a file",
)
async def _killed_holder(scene: DraScene) -> str:
    [device] = await scene.some()
    (older, old), (_, new) = await _overlapping(scene)
    claim = await scene.claim(scene.result(device))
    async with scene.connection(at=old) as connection, anyio.create_task_group() as tasks:

        async def ask() -> None:
            with suppress(CallError):
                await connection.prepare([claim], 10.0)

        scene.server.faults.slow(1.0)
        tasks.start_soon(ask)
        await scene.elapse(0.4)
        await scene.kill(older)
    scene.server.faults.slow(0.0)
    began = anyio.current_time()
    await scene.prepared(claim, at=new, within=scene.limit(3.0))
    took = anyio.current_time() - began
    await scene.unprepared(claim, at=new)
    return f"the next call took {took:.2f} s"
