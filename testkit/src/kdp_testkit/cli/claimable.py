"""Which devices of published slices one claim can have, as the scheduler would see to it in the simplest way."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, Final

from kdp.model.quantities import Quantity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from decimal import Decimal

MOST_DEVICES: Final = 8
"""Devices that one claim has at most: those of a usual node."""

MOST_KINDS: Final = 8
"""Kinds of devices that are tried."""

_KINDS: Final = ("resource", "type", "profile")
"""Attributes that say of which kind a device is."""

_Object = dict[str, Any]

Claimable = tuple[str, _Object]
"""A device that a claim can have, behind its pool."""


def sizes(number: int) -> list[int]:
    """Return how many devices claims have: one, two, and all of so many."""
    return sorted({size for size in (1, 2, min(number, MOST_DEVICES)) if 0 < size <= number})


def claimable(slices: Sequence[_Object]) -> list[list[Claimable]]:
    """Return for each kind the devices that one claim can have together, each with its pool.

    A kind is what a class would select. The devices use no more of a shared counter than there is.
    """
    kinds = dict.fromkeys(
        _kind(device) for each in slices for device in each["spec"].get("devices") or () if not keeping(device)
    )
    found = [_of_kind(kind, slices) for kind in kinds]
    return [devices for devices in found if devices][:MOST_KINDS]


def _of_kind(kind: object, slices: Sequence[_Object]) -> list[Claimable]:
    left: dict[tuple[str, str, str], Decimal] = {}
    for each in slices:
        for shared in each["spec"].get("sharedCounters") or ():
            for name, held in shared["counters"].items():
                left[each["spec"]["pool"]["name"], shared["name"], name] = Quantity(str(held["value"])).value
    found: list[Claimable] = []
    for each in slices:
        pool = each["spec"]["pool"]["name"]
        for device in each["spec"].get("devices") or ():
            if keeping(device) or _kind(device) != kind:
                continue
            uses = _uses(pool, device)
            if all(key in left and amount <= left[key] for key, amount in uses.items()):
                left |= {key: left[key] - amount for key, amount in uses.items()}
                found.append((pool, device))
    return found


def _uses(pool: str, device: Mapping[str, Any]) -> dict[tuple[str, str, str], Decimal]:
    """Return what a device uses of shared counters."""
    return {
        (pool, of_set["counterSet"], name): Quantity(str(held["value"])).value
        for of_set in device.get("consumesCounters") or ()
        for name, held in of_set["counters"].items()
    }


def _kind(device: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what devices of one kind have in common: which attributes there are, and the names of kinds in them."""
    attributes: Mapping[str, Any] = device.get("attributes") or {}
    named = [attributes[name] for name in sorted(attributes) if name.rpartition("/")[2] in _KINDS]
    return tuple(sorted(attributes)), json.dumps(named, sort_keys=True)


def share(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the scheduler adds for a device that is shared: a share, with the default of each capacity."""
    if not device.get("allowMultipleAllocations"):
        return {}
    capacities: Mapping[str, _Object] = device.get("capacity") or {}
    consumed: dict[str, str] = {}
    for name, held in capacities.items():
        policy: Mapping[str, str] = held.get("requestPolicy") or {}
        consumed[name] = policy.get("default", str(held["value"]))
    return {"shareID": str(uuid.uuid4()), **({"consumedCapacity": consumed} if consumed else {})}


def keeping(device: Mapping[str, Any]) -> list[str]:
    """Return the keys of the taints that keep claims away."""
    return [taint["key"] for taint in device.get("taints") or () if taint["effect"] != "None"]
