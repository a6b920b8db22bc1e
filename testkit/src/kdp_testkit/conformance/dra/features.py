"""Checks of what not every driver has, and not every Kubernetes.

Devices that are more than one for one claim: shares, and partitions that consume counters. Device metadata: files in
containers that say which devices their claims have. Calls that the kubelet leaves out: ``skipNodeOperations``, behind a
gate of Kubernetes 1.37.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ...dra import events, objects
from ...dra.claims import SKIPPING
from ...dra.pods import DraPod
from ...dra.runtime import cdi_devices
from ..checks import Checks, NotApplicable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...dra.claims import ClaimEntry
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


ROOT = "/var/run/kubernetes.io/dra-device-attributes"
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"


async def _mount(scene: DraScene, claim: ClaimEntry) -> dict[str, Any] | None:
    """Prepare a claim and return the mount of its metadata as a runtime would make it; None: it has none."""
    ids = {each for device in await scene.prepared(claim) for each in device.cdi_ids}
    for name, edits in sorted(cdi_devices(scene.node.cdi).items()):
        for mount in edits.get("mounts", ()) if name in ids else ():
            if mount["containerPath"].startswith(ROOT):
                return dict(mount)
    return None


def _is_there(mount: Mapping[str, Any]) -> bool:
    return Path(mount["hostPath"]).exists()


def _judge(
    scene: DraScene, claim: ClaimEntry, mount: Mapping[str, Any], device: Mapping[str, Any], folder: str
) -> None:
    expected = f"{ROOT}/{folder}/r0/{scene.driver}-metadata.json"
    scene.require(mount["containerPath"] == expected, f"it is at {mount['containerPath']}, and not at {expected}")
    scene.require("ro" in mount.get("options", ()), f"containers can write it: its options are {mount.get('options')}")
    text = Path(mount["hostPath"]).read_text()
    first, _ = json.JSONDecoder().raw_decode(text)  # further versions may follow
    version, kind = first.get("apiVersion", ""), first.get("kind")
    scene.require(
        version.startswith("metadata.resource.k8s.io/") and kind == "DeviceMetadata", f"it is {kind} of {version}"
    )
    meta = first.get("metadata", {})
    scene.require((meta.get("name"), meta.get("uid")) == (claim.name, claim.uid), f"it is of claim {meta}")
    scene.require(meta.get("generation", 0) >= 1, f"its generation is {meta.get('generation')}")
    described = [
        (request["name"], each["driver"], each["pool"], each["name"])
        for request in first.get("requests", ())
        for each in request["devices"]
    ]
    scene.require(described == [("r0", scene.driver, device["pool"], device["name"])], f"it names {described}")


@CHECKS.add(
    54,
    "containers find a description of their devices",
    expected="each request has a read-only file at a fixed path, which is removed with the claim",
    rule="programs read it at a fixed path, which for a claim of a template has the claim's name in the pod",
    cure="write the file before the CDI spec that mounts it, and remove it at Unprepare",
)
async def _metadata(scene: DraScene) -> str:
    device, claim = await scene.claimed()
    mount = await _mount(scene, claim)
    if mount is None:
        raise NotApplicable(f"the driver mounts nothing at {ROOT}")
    _judge(scene, claim, mount, device, f"resourceclaims/{claim.name}")
    await scene.unprepared(claim)
    scene.require(not _is_there(mount), f"{mount['hostPath']} is still there after Unprepare")
    made = await scene.claim(scene.result(device))
    item = await scene.stored(made)
    item["metadata"]["annotations"] = {POD_CLAIM: "accelerator"}
    await scene.server.ask("PUT", objects.claims(made.name), item)
    mount = await _mount(scene, made)
    scene.require(mount, "a claim of a template has no metadata")
    _judge(scene, made, mount or {}, device, "resourceclaimtemplates/accelerator")
    await scene.unprepared(made)
    await scene.require_free(device)
    return str(mount and mount["containerPath"])


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
