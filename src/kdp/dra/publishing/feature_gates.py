"""What an API server silently left out of a ResourceSlice, by which gate, and what can be published all the same.

A server whose feature gate is off removes the fields of that feature from what it is sent (``k8s.io/kubernetes``
``pkg/registry/resource/resourceslice/strategy.go``). Writing again would only be answered in the same way, so the
devices are published as the server can hold them, or not at all where what is left would be a lie: a partition whose
counters are not counted would be allocated beyond what its card has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import attrs

from ...model.devices import Device

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

PARTITIONS = "DRAPartitionableDevices"
SHARES = "DRAConsumableCapacity"
TAINTS = "DRADeviceTaints"
BINDING = "DRADeviceBindingConditions"
LISTS = "DRAListTypeAttributes"

_GATES = {
    "sharedCounters": PARTITIONS,
    "consumesCounters": PARTITIONS,
    "perDeviceNodeSelection": PARTITIONS,
    "allowMultipleAllocations": SHARES,
    "requestPolicy": SHARES,
    "taints": TAINTS,
    "bindsToNode": BINDING,
    "bindingConditions": BINDING,
    "bindingFailureConditions": BINDING,
    "bools": LISTS,
    "ints": LISTS,
    "strings": LISTS,
    "versions": LISTS,
}


@final
@attrs.frozen
class DroppedField:
    """A field that was sent and is not stored.

    Attributes:
        path: The field.
        gate: The feature gate that is off on the server, as far as we know; "": nobody knows.
    """

    path: str
    gate: str


def dropped_fields(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> list[DroppedField]:
    """Return which fields of an object's ``spec`` the server has left out; only the topmost of each branch.

    Args:
        sent: The object that was written.
        stored: What the server answered to that.
    """
    return [DroppedField(path, _gate(path)) for path in _missing(sent["spec"], stored["spec"], "spec")]


def _missing(sent: Any, stored: Any, path: str) -> Iterator[str]:
    if sent == stored:
        return  # as nearly all of it is, nearly always
    if _are(dict, sent, stored):
        yield from _missing_of_object(sent, stored, path)
    elif _are(list, sent, stored):
        for index, (ours, theirs) in enumerate(zip(sent, stored, strict=False)):
            yield from _missing(ours, theirs, f"{path}[{index}]")


def _are(kind: type, *values: object) -> bool:
    return all(isinstance(value, kind) for value in values)


def _missing_of_object(sent: dict[str, Any], stored: dict[str, Any], path: str) -> Iterator[str]:
    for name, value in sent.items():
        where = f"{path}[{name}]" if path.endswith((".attributes", ".capacity", ".counters")) else f"{path}.{name}"
        if name in stored:
            yield from _missing(value, stored[name], where)
        elif value not in ([], {}, "", None, False):
            yield where


def _gate(path: str) -> str:
    return _GATES.get(re.split(r"[.\]]", path)[-1], "")


@final
@attrs.frozen(kw_only=True)
class Publishable:
    """What a server with gates off can hold of the devices.

    Attributes:
        devices: Those to publish; some may have lost what the server does not know.
        withheld: The ids of the others, each with the gate that it needs.
    """

    devices: tuple[Device, ...]
    withheld: Mapping[str, str]


def publishable(devices: Sequence[Device], gates_off: AbstractSet[str]) -> Publishable:
    """Return what can be published honestly.

    A shared device is given to one claim at a time without its gate, and is published. Withheld are partitions, devices
    that wait for binding conditions, and devices with a taint that keeps claims away.

    Args:
        devices: All of them.
        gates_off: The gates that are off on the server.
    """
    kept: list[Device] = []
    withheld: dict[str, str] = {}
    for device in devices:
        gate = next((gate for gate in _needs(device) if gate in gates_off), None)
        if gate is not None:
            withheld[device.id] = gate
            continue
        without: dict[str, Any] = {}
        if SHARES in gates_off:
            without["shareable"] = None
        if TAINTS in gates_off:
            without["taints"] = ()
        kept.append(attrs.evolve(device, **without) if without else device)
    return Publishable(devices=tuple(kept), withheld=withheld)


def _needs(device: Device) -> Iterable[str]:
    """Return the gates without which the device must not be published."""
    if device.consumes:
        yield PARTITIONS
    if device.binding_conditions is not None:
        yield BINDING
    if any(taint.effect != "None" for taint in device.taints):
        yield TAINTS
