"""What the kubelet remembers of the claims of its pods: the claim info cache, and the decisions about it. No I/O.

Modelled after ``k8s.io/kubernetes`` ``pkg/kubelet/cm/dra`` (``manager.go``, ``claiminfo.go``). The cache is written to
the checkpoint before and after the driver is called; whether a claim is prepared is in memory alone, so after a restart
it is asked for again, and up to 1.36 the new answer is appended to the old one.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from .pods import DraPod
    from .profiles import DraProfile

CHECKPOINT_NAME = "dra_manager_state"
_KIND = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1"}

SKIPPING = "DRAOptionalNodeOperations"
"""The gate of calls that are left out."""

PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"

ClaimKey = tuple[str, str]
"""Namespace and name."""
Object = dict[str, Any]


class ClaimRefusal(Exception):
    """The kubelet goes no further with a pod; the text is its own."""


@attrs.frozen(kw_only=True)
class PreparedDevice:
    """A device as a driver's answer has it.

    Attributes:
        requests: The requests of the claim that it serves; none: all of them.
        pool: Its pool.
        device: Its name.
        cdi_ids: Fully qualified.
        share_id: Which share of it; only on the wire of version v1.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@attrs.define(kw_only=True)
class ClaimEntry:
    """One claim.

    Attributes:
        namespace: Its namespace.
        name: Its name.
        uid: Its UID.
        pods: The UIDs of the pods that use it.
        drivers: The drivers of its allocation, each with the devices that it answered.
        skips: The calls that are left out, by driver (1.37).
        is_prepared: In memory alone.
        is_unpreparing: In memory alone (1.37).
    """

    namespace: str
    name: str
    uid: str
    pods: set[str] = attrs.field(factory=set[str])
    drivers: dict[str, list[PreparedDevice]] = attrs.field(factory=dict[str, list[PreparedDevice]])
    skips: dict[str, tuple[str, ...]] = attrs.field(factory=dict[str, tuple[str, ...]])
    is_prepared: bool = False
    is_unpreparing: bool = False

    def called(self, operation: str) -> list[str]:
        """Return the drivers that get this call."""
        return [driver for driver in self.drivers if not {operation, "*"} & set(self.skips.get(driver, ()))]

    def cdi_ids(self, request: str = "") -> list[str]:
        """Return what a container is given that uses this request; "": all of them."""
        return [
            cdi_id
            for devices in self.drivers.values()
            for device in devices
            if not request or not device.requests or request in device.requests
            for cdi_id in device.cdi_ids
        ]


def drivers_of(claim: Mapping[str, Any]) -> list[str]:
    """Return the drivers of a claim's allocation.

    Raises:
        ClaimRefusal: It is not allocated.
    """
    allocation = claim.get("status", {}).get("allocation")
    if allocation is None:
        raise ClaimRefusal(f"ResourceClaim {claim['metadata']['name']}: not allocated")
    return list(dict.fromkeys(result["driver"] for result in allocation.get("devices", {}).get("results", ())))


def skips_of(claim: Mapping[str, Any], gates: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the calls that are left out, by driver: those that all its devices in the claim leave out.

    Raises:
        ClaimRefusal: There are some, and the kubelet has the gate off.
    """
    listed: dict[str, list[set[str]]] = {}
    for result in claim["status"]["allocation"].get("devices", {}).get("results", ()):
        listed.setdefault(result["driver"], []).append(set(result.get("skipNodeOperations") or ()))
    found: dict[str, tuple[str, ...]] = {}
    for driver, results in listed.items():
        named = set[str]().union(*results) - {"*"}
        skipped = (
            ["*"]
            if all("*" in each for each in results)
            else sorted(name for name in named if all({name, "*"} & each for each in results))
        )
        if skipped:
            found[driver] = tuple(skipped)
    if found and SKIPPING not in gates:
        raise ClaimRefusal(f"ResourceClaim {claim['metadata']['name']}: {SKIPPING} feature gate is disabled on kubelet")
    return found


def judge(pod: DraPod, pod_claim: str, claim: Mapping[str, Any], profile: DraProfile) -> None:
    """Say whether a pod may use a claim: it is made for it if it is of a template, and reserved for it.

    Raises:
        ClaimRefusal: It may not.
    """
    meta = claim["metadata"]
    if pod_claim in pod.templates:
        owners = meta.get("ownerReferences", ())
        if not any(owner.get("controller") and owner.get("uid") == pod.uid for owner in owners):
            word = profile.pod_word
            raise ClaimRefusal(
                f"ResourceClaim {meta['namespace']}/{meta['name']} was not created for {word} "
                f"{pod.namespace}/{pod.name} ({word} is not owner)"
            )
    reserved = claim.get("status", {}).get("reservedFor", ())
    if not any(each.get("resource") == "pods" and each.get("uid") == pod.uid for each in reserved):
        raise ClaimRefusal(
            f"pod {pod.name} ({pod.uid}) is not allowed to use ResourceClaim {meta['name']} ({meta['uid']})"
        )


class ClaimCache:
    """The entries, by namespace and name.

    Args:
        profile: Which kubelet.
        checkpoint: What the one before has written; "": nothing. What cannot be read counts as nothing: a real kubelet
            does not start with it.
    """

    def __init__(self, profile: DraProfile, checkpoint: str = "") -> None:
        self._profile = profile
        self.entries: dict[ClaimKey, ClaimEntry] = {}
        if checkpoint:
            self._load(checkpoint)

    # -- Prepare -------------------------------------------------------------------------------------------------------

    def refer(self, pod: DraPod, claims: Iterable[Mapping[str, Any]]) -> dict[str, list[ClaimEntry]]:
        """Note that a pod uses its claims, and return which are to be prepared, by driver.

        Those before the one that is refused stay noted, as they do in the kubelet.

        Raises:
            ClaimRefusal: An older claim of the same name is still there, or is being unprepared.
        """
        batches: dict[str, list[ClaimEntry]] = {}
        for claim in claims:
            meta = claim["metadata"]
            key = meta["namespace"], meta["name"]
            entry = self.entries.get(key)
            if entry is None:
                entry = ClaimEntry(namespace=key[0], name=key[1], uid=meta["uid"])
                entry.drivers = {driver: [] for driver in drivers_of(claim)}
                entry.skips = skips_of(claim, self._profile.gates)
                self.entries[key] = entry
            elif entry.uid != meta["uid"]:
                raise ClaimRefusal(
                    f"old ResourceClaim with same name {meta['name']} and different UID {entry.uid} still exists "
                    f"(previous pod force-deleted?!)"
                )
            elif entry.is_unpreparing:
                raise ClaimRefusal(f"ResourceClaim {meta['name']} is being unprepared")
            entry.pods.add(pod.uid)
            if not entry.is_prepared:
                for driver in entry.called(PREPARE):
                    batch = batches.setdefault(driver, [])
                    if entry not in batch:
                        batch.append(entry)
        return batches

    def answered(
        self, driver: str, batch: Collection[ClaimEntry], answer: Mapping[str, tuple[tuple[PreparedDevice, ...], str]]
    ) -> None:
        """Take a driver's answer to Prepare: by claim UID the devices, and an error.

        Raises:
            ClaimRefusal: It is not what was asked for, or has an error. What came before it is kept.
        """
        asked = {entry.uid: entry for entry in batch}
        for uid, (devices, error) in answer.items():
            entry = asked.get(uid)
            if entry is None:
                raise ClaimRefusal(f"NodePrepareResources returned result for unknown claim UID {uid}")
            if error:
                raise ClaimRefusal(f"NodePrepareResources failed for ResourceClaim {entry.name}: {error}")
            kept = entry.drivers.setdefault(driver, [])
            if self._profile.answer_replaces:
                kept.clear()
            kept.extend(devices)
        if len(answer) < len(asked):
            raise ClaimRefusal(f"NodePrepareResources skipped {len(asked) - len(answer)} ResourceClaims")

    # -- Unprepare -----------------------------------------------------------------------------------------------------

    def release(self, pod_uid: str, keys: Iterable[ClaimKey]) -> tuple[list[ClaimEntry], dict[str, list[ClaimEntry]]]:
        """Release a pod's claims; return the unused ones, and the same by driver to call."""
        unused: list[ClaimEntry] = []
        batches: dict[str, list[ClaimEntry]] = {}
        for key in keys:
            entry = self.entries.get(key)
            if entry is None or (self._profile.guards_unprepare and pod_uid not in entry.pods):
                continue
            if len(entry.pods) > 1:
                entry.pods.discard(pod_uid)
                continue
            entry.is_unpreparing = self._profile.guards_unprepare
            unused.append(entry)
            for driver in entry.called(UNPREPARE):
                batches.setdefault(driver, []).append(entry)
        return unused, batches

    def unprepared(self, batch: Collection[ClaimEntry], answer: Mapping[str, str]) -> None:
        """Take a driver's answer to Unprepare: by claim UID an error, or "".

        Raises:
            ClaimRefusal: It is not what was asked for, or has an error.
        """
        asked = {entry.uid: entry for entry in batch}
        for uid, error in answer.items():
            if uid not in asked:
                raise ClaimRefusal(f"NodeUnprepareResources returned result for unknown claim UID {uid}")
            if error:
                raise ClaimRefusal(f"NodeUnprepareResources failed for ResourceClaim {asked[uid].name}: {error}")
        if len(answer) < len(asked):
            raise ClaimRefusal(f"NodeUnprepareResources skipped {len(asked) - len(answer)} ResourceClaims")

    def forget(self, entries: Iterable[ClaimEntry]) -> None:
        """Drop entries that are unprepared."""
        for entry in entries:
            self.entries.pop((entry.namespace, entry.name), None)

    def keys_of(self, pod_uid: str) -> list[ClaimKey]:
        """Return the claims that a pod is noted for."""
        return [key for key, entry in self.entries.items() if pod_uid in entry.pods]

    def pods(self) -> set[str]:
        """Return the UIDs of all pods that are noted for a claim."""
        return {uid for entry in self.entries.values() for uid in entry.pods}

    # -- the checkpoint ------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return the checkpoint's content: the layout is the kubelet's."""
        states: list[dict[str, object]] = [
            {
                "ClaimUID": entry.uid,
                "ClaimName": entry.name,
                "Namespace": entry.namespace,
                "PodUIDs": {uid: {} for uid in sorted(entry.pods)},
                "DriverState": {
                    driver: {
                        "Devices": [
                            {
                                "PoolName": device.pool,
                                "DeviceName": device.device,
                                **({"ShareID": device.share_id} if self._profile.remembers_shares else {}),
                                "RequestNames": list(device.requests),
                                "CDIDeviceIDs": list(device.cdi_ids),
                            }
                            for device in devices
                        ],
                        **({"skipNodeOperations": list(entry.skips[driver])} if driver in entry.skips else {}),
                    }
                    for driver, devices in entry.drivers.items()
                },
            }
            for entry in self.entries.values()
        ]
        data = json.dumps({**_KIND, "ClaimInfoStateList": states}, separators=(",", ":"))
        return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}, separators=(",", ":"))

    def _load(self, text: str) -> None:
        try:
            document = json.loads(text)
            if document["Checksum"] != zlib.crc32(document["Data"].encode()):
                return
            states = json.loads(document["Data"])["ClaimInfoStateList"] or ()
            loaded = [
                ClaimEntry(
                    namespace=state["Namespace"],
                    name=state["ClaimName"],
                    uid=state["ClaimUID"],
                    pods=set(state["PodUIDs"]),
                    drivers={
                        driver: [
                            PreparedDevice(
                                requests=tuple(device["RequestNames"] or ()),
                                pool=device["PoolName"],
                                device=device["DeviceName"],
                                cdi_ids=tuple(device["CDIDeviceIDs"] or ()),
                                share_id=device.get("ShareID"),
                            )
                            for device in kept["Devices"] or ()  # Go writes null for an empty list
                        ]
                        for driver, kept in state["DriverState"].items()
                    },
                    skips={
                        driver: tuple(kept["skipNodeOperations"])
                        for driver, kept in state["DriverState"].items()
                        if kept.get("skipNodeOperations")
                    },
                )
                for state in states
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        self.entries = {(entry.namespace, entry.name): entry for entry in loaded}
