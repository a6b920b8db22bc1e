"""Checks of a driver's registration and life: sockets, GetInfo, restarts of the kubelet and of the driver."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio

from ... import events as common
from ..checks import Checks

if TYPE_CHECKING:
    from pathlib import Path

    from ..instance import Ending
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
