"""Checks of a driver's registration and life: sockets, GetInfo, restarts of the kubelet and of the driver, and updates.

In a rolling update the new pod begins before the old one ends: then there are two instances at once.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from ... import events as common
from ...protocol.wire import CallError
from ..checks import Checks, NotApplicable

if TYPE_CHECKING:
    from pathlib import Path

    from ..instance import Ending, Instance
    from .scene import DraScene

CHECKS: Checks[DraScene] = Checks()

_ORDER = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


def _sockets(scene: DraScene) -> list[Path]:
    roots = scene.node.paths.plugins_registry_dir, scene.node.paths.plugins_dir
    return [path for root in roots for path in root.rglob("*") if path.is_socket()]


@CHECKS.add(
    1,
    "GetInfo says what the kubelet needs, newest first",
    expected=(
        "type DRAPlugin, an absolute endpoint, v1.DRAPlugin before v1beta1.DRAPlugin, services of health last, in 1 s"
    ),
    rule="the kubelet gives GetInfo 1 s and takes the first version of the plugin's list that it knows",
    cure="answer GetInfo from memory; list v1.DRAPlugin first, then v1beta1.DRAPlugin, then the services of health",
)
async def _info(scene: DraScene) -> str:
    await scene.registered()
    said = scene.kubelet.events.of(common.PluginInfoReceived)[-1]
    scene.require(said.plugin_type == "DRAPlugin", f"the type is {said.plugin_type!r}")
    scene.require(os.path.isabs(said.endpoint), f"the endpoint is {said.endpoint!r}")
    known = [each for each in said.versions if each in _ORDER]
    scene.require("v1.DRAPlugin" in known, f"v1.DRAPlugin is not in {list(said.versions)}")
    scene.require(known == sorted(known, key=_ORDER.index), f"the order is {list(said.versions)}")
    return f"{said.resource} with {', '.join(said.versions)}"


@CHECKS.add(
    2,
    "the service accepts calls before the driver can be found",
    expected="a client that sees the registration socket can call the endpoint at once",
    rule="the kubelet may call as soon as it sees the registration socket",
    cure="listen on the service socket first, then create the registration socket",
)
async def _service_first(scene: DraScene) -> str:
    # `playing` looks at the sockets in the moment in which GetInfo is answered.
    looked = scene.endpoint_answered
    scene.require(looked is not None, "GetInfo was never answered")
    scene.require(looked, "nobody listened at the endpoint when GetInfo was answered")
    return "the endpoint was there when GetInfo was answered"


@CHECKS.add(
    3,
    "dead sockets of a killed predecessor are replaced",
    expected="after SIGKILL and a new start the driver is registered and can be called",
    rule="sockets of a killed process stay as files; nobody else removes them",
    cure="at the start, unlink your own sockets if nobody answers there, then bind anew",
)
async def _killed(scene: DraScene) -> str:
    [device] = await scene.some()
    await scene.kill()
    began = anyio.current_time()
    await scene.start_again()
    took = anyio.current_time() - began
    await scene.require_free(device)
    return f"registered again after {took:.2f} s"


@CHECKS.add(
    6,
    "a registration that was refused does not end the driver",
    expected="the driver goes on serving, and is registered when the kubelet asks again",
    rule="NotifyRegistrationStatus(false) reports a refusal; it does not ask the driver to end",
    cure="answer the call, log the error, and keep running",
)
async def _refused(scene: DraScene) -> str:
    [device] = await scene.some()
    await scene.leave()
    scene.kubelet.faults.notify_refused("the node is drained")
    await scene.start()

    def is_refused() -> bool:
        return any(not each.registered for each in scene.kubelet.events.of(common.PluginNotified))

    await scene.until(is_refused, scene.limit(3.0), "NotifyRegistrationStatus(false) could not be sent")
    await scene.kubelet.restart()
    await scene.registered()
    await scene.require_free(device)
    return "registered at the next try"


@CHECKS.add(
    7,
    "a kubelet that restarts finds driver, slices and claims again",
    expected="the driver is registered, its slices are back, prepared claims are as they were",
    rule="a kubelet deletes all slices of its node when it starts, and forgets what is prepared",
    cure="watch your own slices and write them again when they are deleted; touch no claim on your own",
)
async def _kubelet_restarts(scene: DraScene) -> str:
    _, claim = await scene.claimed()
    first = await scene.prepared(claim)
    before = {each["metadata"]["uid"] for each in await scene.slices()}
    await scene.kubelet.restart()
    await scene.registered()

    async def again() -> bool:
        now = {each["metadata"]["uid"] for each in await scene.slices()}
        return bool(now) and not now & before

    took = await scene.until(again, scene.limit(3.0), "the slices that the kubelet deleted were not written again")
    scene.require_resolved(first)
    second = await scene.prepared(claim)
    scene.require(first == second, f"the answer was {first}, then {second}")
    await scene.unprepared(claim)
    return f"slices back after {took:.2f} s"


@CHECKS.add(
    8,
    "SIGTERM with a Prepare in flight leaves nothing half done",
    expected="the call is answered, the sockets are removed, and the successor can unprepare the claim",
    rule="only removed sockets tell the kubelet that the driver has gone",
    cure="on SIGTERM stop taking calls, finish or refuse those in flight, unlink both sockets, keep the state",
)
async def _stopped(scene: DraScene) -> str:
    device, claim = await scene.claimed()
    answered: list[str] = []
    ending: Ending | None = None
    async with scene.connection() as connection, anyio.create_task_group() as tasks:

        async def ask() -> None:
            from ...protocol.wire import CallError

            try:
                answer = await connection.prepare([claim], 45.0)
            except CallError as error:
                answered.append(str(error))
            else:
                answered.append(answer[claim.uid][1] if claim.uid in answer else "no entry")

        scene.server.faults.slow(0.5)
        tasks.start_soon(ask)
        await scene.elapse(0.2)
        ending = await scene.stop()
    scene.server.faults.clear()
    scene.require(answered, "the call in flight was never answered")
    left = _sockets(scene)
    scene.require(not left, f"{', '.join(path.name for path in left)} is still there after SIGTERM")
    await scene.unregistered()
    await scene.start()
    await scene.registered()
    await scene.unprepared(claim)
    await scene.require_free(device)
    return f"{ending}; the call in flight: {answered[0] or 'prepared'}"


@CHECKS.add(
    11,
    "a kubelet that speaks only v1beta1 is served",
    expected="NodePrepareResources and NodeUnprepareResources of v1beta1 behave like those of v1",
    rule="kubelets from 1.32 on speak v1beta1; those before 1.34 speak nothing newer",
    cure="serve both versions with one implementation; leave share_id out in v1beta1",
)
async def _old_version(scene: DraScene) -> str:
    _, claim = await scene.claimed()
    devices = await scene.prepared(claim, version="v1beta1")
    scene.require_resolved(devices)
    for error in (await scene.unprepare(claim, version="v1beta1")).values():
        scene.require(not error, f"v1beta1 could not unprepare: {error}")
    return "prepared and unprepared with v1beta1"


_UID = "8c6e2a8e-6f0b-4d3a-9f10-2b9b51e0a7d4"
_ROOT_BYTES = 53
"""Of a kubelet's root directory under which no name with a pod's UID fits, but one of 35 bytes."""
_SOCKET_BYTES = 107 - len("/plugins/" + "/" + "dra-0123456789a.sock")
"""A root directory and a driver's name have at most so many together, if the socket's name has a digest."""


@CHECKS.add(
    4,
    "the driver reports a missing registry directory, and waits for it",
    expected="the driver names the directory, and is registered when the kubelet has made it",
    rule="the directory is the kubelet's, and may be mounted or made later than the driver starts",
    cure="name the path and that it must be mounted; try again with growing pauses, or end and be started again",
)
async def _no_registry(scene: DraScene) -> str:
    registry = scene.node.paths.plugins_registry_dir
    await scene.leave()
    await scene.kubelet.crash()
    shutil.rmtree(registry)
    instance = await scene.start()
    scene.may_end(instance)
    await scene.until(
        lambda: os.fspath(registry) in instance.output(), scene.limit(2.0), f"the driver did not name {registry}"
    )
    await scene.elapse(0.5)
    await scene.kubelet.start()
    if instance.ending is not None:
        await scene.start()
    await scene.registered()
    return "it ended and was started again" if instance.ending is not None else "it waited"


@CHECKS.add(
    5,
    "long socket names are shortened, always in the same way",
    expected="under a long path, in a pod with a UID, the driver is registered, and again by the same names",
    rule="a socket's path has at most 107 bytes; the next container must find what this one has left",
    cure="replace the pod's UID, or the driver's name and the UID, by a digest",
)
async def _too_long(scene: DraScene) -> str:
    folder = scene.node.state.parent
    rest = min(_ROOT_BYTES, _SOCKET_BYTES - len(scene.driver)) - len(os.fsencode(folder)) - 1
    if rest < 1:
        long = f"the temporary directory {folder} and the driver's name, {scene.driver},"
        raise NotApplicable(f"{long} leave no place for a socket's name; set TMPDIR to a shorter directory")
    async with scene.moved(folder / ("x" * rest)):
        names: list[tuple[list[str], str]] = []
        for _ in range(2):
            await scene.start_again(pod_uid=_UID)
            found = sorted(path.name for path in scene.node.paths.plugins_registry_dir.iterdir() if path.is_socket())
            names.append((found, scene.endpoint))
            await scene.leave()
    scene.require(names[0] == names[1], f"the names were {names[0]}, then {names[1]}")
    return ", ".join(names[0][0])


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
    [device] = await scene.some(alone=True)
    before, devices, since = await scene.slices(), await scene.devices(), scene.changes
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
    if await scene.slices() != before:
        changed = "the slices were changed by an update that changes no device"
        scene.require(scene.was_tainted(devices, since), changed)

        async def are_as_before() -> bool:
            return await scene.devices() == devices

        await scene.until(are_as_before, scene.limit(3.0), f"{changed}, and that is not taken back")
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
