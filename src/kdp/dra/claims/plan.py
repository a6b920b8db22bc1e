"""What a ResourceClaim asks of this driver: which devices, for which requests, with which parameters. Without I/O.

The scheduler has chosen the devices; the driver only has the last word, because the object comes from the API and the
devices from here and now. What is not for this driver is left alone; everything else that does not fit is a
`ClaimError` with a sentence for the claim's author.

* Requests keep their full name, as ``gpu/large``, for parameters and hooks; the kubelet gets the base name, ``gpu``.
* A device whose last claim is over, but not released, is not refused here: Prepare waits for the release.
* A device belongs to one claim at a time. Of a shared device several may have a share each, and admin access disturbs
  nobody. The scheduler keeps to it. If it did not, the claim is refused, and the present holder keeps the device.
* One allocation of a backend is one request of a claim. A request that got two shares of one device is two allocations,
  since an allocation has one share of each device.

Source: ``resource.k8s.io/v1`` ResourceClaim; DRA contract section 3.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import ClaimError, InvalidValueError
from ...model.quantities import Quantity
from ...supervision.backend_validation import resource_of
from ...supervision.conditions import lets_allocate
from ..names import device_name
from ..render import health_key
from .checkpoint import ClaimPart, Record, Use
from .parameters import Parameters, read_parameters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ...model.backend import DeviceBackend
    from ...model.claims import Claim
    from ...model.devices import Device
    from ...supervision.holdings import Holding


POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim that was made of a template."""


def result_keys(item: Mapping[str, Any], claim: Claim, driver: str) -> frozenset[tuple[str, str, str, str]]:
    """Return which devices of a driver are allocated to a claim, as `Use.key` names them.

    Raises:
        ClaimError: It is another claim, or is not allocated.
    """
    results = _allocation(item, claim).get("devices", {}).get("results") or ()
    return frozenset(
        (each["request"], each["pool"], each["device"], each.get("shareID") or "")
        for each in results
        if each.get("driver") == driver
    )


def plan_of(
    item: Mapping[str, Any],
    claim: Claim,
    *,
    driver: str,
    pool: str,
    devices: Mapping[str, Device],
    backend: DeviceBackend,
) -> tuple[Record, Parameters]:
    """Return what a claim is to get, and the parameters for it; no parts: the claim has no device of this driver.

    Args:
        item: The ResourceClaim as the API server has it.
        claim: Which one the kubelet means.
        driver: The driver's name.
        pool: The pool's name.
        devices: The driver's devices by their ids.
        backend: The backend.

    Raises:
        ClaimError: It is another claim, is not allocated, or asks for what cannot be given; a sentence for its author.
    """
    allocated = _allocation(item, claim).get("devices", {})
    entries = tuple(allocated.get("config") or ())
    ours = [each for each in allocated.get("results") or () if each.get("driver") == driver]
    if not ours:
        return Record(claim=claim), Parameters()
    by_name = {device_name(device_id): device for device_id, device in devices.items()}
    groups: dict[tuple[str, str, int], list[Use]] = {}
    seen: dict[tuple[str, str], int] = {}
    uses: list[Use] = []
    for result in ours:
        device = by_name.get(result["device"]) if result["pool"] == pool else None
        if device is None:
            raise ClaimError(
                f"device {result['device']} of pool {result['pool']}: is gone; {driver} on this node has "
                f"{len(devices)} devices in pool {pool}"
            )
        _check_health(device, result, driver)
        use = _use(result, device, driver)
        uses.append(use)
        count = seen.get((use.request, use.device_id), 0)
        seen[use.request, use.device_id] = count + 1
        groups.setdefault((use.request, resource_of(device, backend), count), []).append(use)
    _check_apart(uses)
    annotations: Mapping[str, str] = item["metadata"].get("annotations") or {}
    record = Record(
        claim=claim,
        parts=tuple(
            ClaimPart(request=name, resource=kind, uses=tuple(group)) for (name, kind, _), group in groups.items()
        ),
        config=tuple(entry for entry in entries if (entry.get("opaque") or {}).get("driver") == driver),
        pod_claim=annotations.get(POD_CLAIM, ""),
    )
    return record, read_parameters(entries, driver=driver, declared=backend.config)


def _allocation(item: Mapping[str, Any], claim: Claim) -> Mapping[str, Any]:
    """Return the allocation of an object that must be the claim that is meant."""
    uid = item.get("metadata", {}).get("uid")
    if uid != claim.uid:
        raise ClaimError(
            f"claim {claim.namespace}/{claim.name}: was replaced, its UID is {uid} and not {claim.uid}; delete the pod "
            "that uses the old one"
        )
    allocation: Mapping[str, Any] | None = item.get("status", {}).get("allocation")
    if not allocation:
        raise ClaimError(f"claim {claim.namespace}/{claim.name}: is not allocated; the scheduler must do it first")
    return allocation


def check_free(record: Record, known: Iterable[Record], withheld: Mapping[str, Holding]) -> list[Record]:
    """Check that no other claim has one of a claim's devices; return the claims whose release must come first.

    Args:
        record: The claim.
        known: All claims.
        withheld: The devices that containers have under other names, by id.

    Raises:
        ClaimError: One has.
    """
    for use in record.uses:
        if (holding := withheld.get(use.device_id)) is not None and not use.is_admin:
            raise ClaimError(f"device {use.name}: is {holding}; it is free when that has ended")
    wanted = {(use.pool, use.name): use for use in record.uses if not use.is_admin}
    owing: list[Record] = []
    for other in known:
        if other.claim.uid == record.claim.uid:
            continue
        for use in other.owed if other.is_over else other.uses:
            mine = wanted.get((use.pool, use.name))
            if mine is None or not _collide(mine, use):
                continue
            if not other.is_over:
                raise ClaimError(
                    f"device {use.name}: is already prepared for claim {other.held.name} ({other.claim.uid}); a device "
                    "serves one claim, unless each has a share of it"
                )
            owing.append(other)
            break
    return owing


def _collide(one: Use, other: Use) -> bool:
    """Whether two claims cannot have a device at once like this."""
    if one.is_admin or other.is_admin:
        return False
    return not one.share_id or not other.share_id or one.share_id == other.share_id


def _check_apart(uses: Sequence[Use]) -> None:
    """Check that a claim does not have a device twice itself."""
    for position, use in enumerate(uses):
        for other in uses[:position]:
            if (use.pool, use.name) == (other.pool, other.name) and _collide(use, other):
                raise ClaimError(
                    f"device {use.name}: is allocated to the requests {other.request} and {use.request} of the claim; "
                    "a device can serve only one request"
                )


def _use(result: Mapping[str, Any], device: Device, driver: str) -> Use:
    consumed: dict[str, str] = {}
    amounts: Mapping[str, Any] = result.get("consumedCapacity") or {}
    for name, amount in amounts.items():
        own = name.removeprefix(f"{driver}/")  # a name without a domain is the driver's
        try:
            consumed[own if own in device.capacity else name] = Quantity(str(amount)).text
        except InvalidValueError as error:
            raise ClaimError(f"device {device_name(device.id)}: consumed capacity {name}: {error}") from None
    return Use(
        request=result["request"],
        pool=result["pool"],
        name=result["device"],
        device_id=device.id,
        share_id=result.get("shareID") or "",
        is_admin=bool(result.get("adminAccess")),
        consumed=consumed,
    )


def _check_health(device: Device, result: Mapping[str, Any], driver: str) -> None:
    """Refuse a sick device, unless its request tolerates that, or Prepare waits for the condition's end."""
    if device.health.is_healthy or result.get("adminAccess") or lets_allocate(device.health.conditions):
        return
    key = health_key(driver)
    for toleration in result.get("tolerations") or ():
        if toleration.get("key") == key or (not toleration.get("key") and toleration.get("operator") == "Exists"):
            return
    raise ClaimError(f"device {device_name(device.id)}: is unhealthy: {device.health.reason}")
