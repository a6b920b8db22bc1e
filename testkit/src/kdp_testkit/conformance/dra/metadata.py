"""The check of device metadata: files in containers that say which devices their claims have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...dra import objects
from ...dra.runtime import cdi_devices
from ..checks import Checks
from ..verdicts import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...dra.claims import ClaimEntry
    from .scene import DraScene

CHECKS: Checks[DraScene] = Checks()

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
