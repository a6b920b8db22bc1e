"""The check of calls that the kubelet leaves out: ``skipNodeOperations``, behind a gate of Kubernetes 1.37."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ...dra import events
from ...dra.claims import SKIPPING
from ...dra.pods import DraPod
from ..checks import Checks
from ..verdicts import NotApplicable

if TYPE_CHECKING:
    from .scene import DraScene

CHECKS: Checks[DraScene] = Checks()


def _calls(scene: DraScene) -> list[str]:
    """Return the calls of Prepare and of Unprepare that the kubelet has made."""
    log = scene.kubelet.events
    prepares = [f"Prepare of {uid}" for each in log.of(events.PrepareRequested) for uid in each.claims]
    return prepares + [f"Unprepare of {uid}" for each in log.of(events.UnprepareRequested) for uid in each.claims]


@CHECKS.add(
    59,
    "the driver works without calls that the kubelet skips",
    expected="a pod whose devices need no call starts and ends without the driver; a prepared "
    "claim that is never unprepared is undone when it is deleted",
    rule="where all results of a driver list a call in skipNodeOperations, the kubelet does not make it",
    cure="clean up from the list of claims that you prepared, undo those that the API no longer has, and do not "
    "wait for an Unprepare",
)
async def _skipped(scene: DraScene) -> str:
    api = scene.server.api
    if not api.profile.knows_skipping:
        raise NotApplicable(f"Kubernetes {api.profile.kubernetes} knows no skipNodeOperations")
    [device] = await scene.some()
    await scene.kubelet.crash()
    api.profile = attrs.evolve(api.profile, gates=api.profile.gates | {SKIPPING})
    await scene.kubelet.start(profile=api.profile)
    await scene.registered()
    await scene.published()
    before, calls = scene.specs(), _calls(scene)

    pod = DraPod(claims={"c": "free"})
    claim = await scene.claim(scene.result(device, skipNodeOperations=["*"]), pods=[pod], name="free")
    await scene.kubelet.start_pod(pod)
    await scene.elapse(2.5 * _grace(scene))
    made = scene.specs() - before
    scene.require(not made, f"a claim that was never prepared left {', '.join(sorted(made))}")
    await scene.kubelet.stop_pod(pod)
    await scene.drop(claim)
    new_calls = [each for each in _calls(scene) if each not in calls]
    scene.require(not new_calls, f"the kubelet made the calls {', '.join(new_calls)}")
    await scene.require_free(device)
    if not scene.subject.takes_grace:
        return "the driver did nothing for the claim; what is never unprepared is left to scenario 36"

    pod = DraPod(claims={"c": "kept"})
    kept = await scene.claim(
        scene.result(device, skipNodeOperations=["NodeUnprepareResources"]), pods=[pod], name="kept"
    )
    given = {each for ids in (await scene.kubelet.start_pod(pod)).values() for each in ids}
    scene.require(given <= scene.specs(), f"unresolvable CDI devices {', '.join(sorted(given - scene.specs()))}")
    await scene.kubelet.stop_pod(pod)
    await scene.drop(kept)
    took = await scene.until(
        lambda: not given & scene.specs(),
        scene.limit(3 * _grace(scene)),
        "a deleted claim is still prepared",
    )
    await scene.require_free(device)
    return f"the driver did nothing for the claim; without an Unprepare the other one was undone after {took:.1f} s"


def _grace(scene: DraScene) -> float:
    return scene.node.grace if scene.subject.takes_grace else 1.0
