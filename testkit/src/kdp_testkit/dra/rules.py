"""What an API server checks and changes of a DRA object: gates, immutable fields, the status of claims. No I/O.

Source: ``k8s.io/kubernetes`` ``pkg/registry/resource`` (``resourceslice/strategy.go``, ``utils.go``) of 1.34 to 1.37.
What a ResourceSlice may hold it does not know: that a real server says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Object = dict[str, Any]
Cause = tuple[str, str, str]
"""Reason, field and sentence, as the causes of a Status have them."""

_OF_SPEC: Final[Mapping[str, tuple[str, ...]]] = {
    "DRAPartitionableDevices": ("sharedCounters", "perDeviceNodeSelection"),
    "DRAOptionalNodeOperations": ("skipNodeOperations",),
}
_OF_DEVICE: Final[Mapping[str, tuple[str, ...]]] = {
    "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
    "DRAConsumableCapacity": ("allowMultipleAllocations",),
    "DRADeviceTaints": ("taints",),
    "DRADeviceBindingConditions": ("bindsToNode", "bindingConditions", "bindingFailureConditions"),
}


def drop_disabled(item: Object, gates: frozenset[str]) -> None:
    """Remove the fields of a ResourceSlice whose gates are off, silently."""
    spec = item["spec"]
    for gate, fields in _OF_SPEC.items():
        if gate not in gates:
            for field in fields:
                spec.pop(field, None)
    for device in spec.get("devices", ()):
        for gate, fields in _OF_DEVICE.items():
            if gate not in gates:
                for field in fields:
                    device.pop(field, None)
        if "DRAConsumableCapacity" not in gates:
            for capacity in device.get("capacity", {}).values():
                capacity.pop("requestPolicy", None)


def drop_disabled_of_claim(item: Object, gates: frozenset[str]) -> None:
    """Remove the fields of a ResourceClaim's status whose gates are off, silently."""
    if "DRAResourceClaimDeviceStatus" not in gates:
        item["status"].pop("devices", None)
    if "DRAOptionalNodeOperations" not in gates:
        allocation: Object = item["status"].get("allocation") or {}
        results: list[Object] = allocation.get("devices", {}).get("results", [])
        for result in results:
            result.pop("skipNodeOperations", None)


def _skipping(listed: Sequence[str] | None, path: str) -> list[Cause]:
    if "NodePrepareResources" in (listed or ()) and not {"NodeUnprepareResources", "*"} & set(listed or ()):
        text = "Invalid value: NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped"
        return [("FieldValueInvalid", path, text)]
    return []


def check_slice(item: Object, old: Mapping[str, Any] | None) -> list[Cause]:
    """Return what is wrong with a ResourceSlice, as far as it is known here: reason, field and sentence."""
    found = _skipping(item["spec"].get("skipNodeOperations"), "spec.skipNodeOperations")
    if old is not None:
        immutable: tuple[tuple[str, ...], ...] = ("driver",), ("pool", "name"), ("nodeName",)
        for path in immutable:
            ours, theirs = _at(item["spec"], path), _at(old["spec"], path)
            if ours != theirs:
                found.append(
                    ("FieldValueInvalid", "spec." + ".".join(path), f'Invalid value: "{ours}": field is immutable')
                )
    return found


def _at(value: Any, path: tuple[str, ...]) -> Any:
    found: Any = value
    for name in path:
        found = None if found is None else found.get(name)
    return found


def check_claim_status(new: Object) -> list[Cause]:
    """Return what is wrong with a claim's new status: devices that are not allocated, calls that cannot be skipped."""
    status = new.get("status", {})
    found: list[Cause] = []
    allocation: Object = status.get("allocation") or {}
    results: list[Object] = allocation.get("devices", {}).get("results", [])
    for index, each in enumerate(results):
        path = f"status.allocation.devices.results[{index}].skipNodeOperations"
        found += _skipping(each.get("skipNodeOperations"), path)
    known = {device_key(each) for each in results}
    for index, device in enumerate(status.get("devices", ())):
        if device_key(device) not in known:
            path = f"status.devices[{index}]"
            found.append(("FieldValueInvalid", path, "Invalid value: must be an allocated device in the claim"))
    return found


def device_key(device: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return which allocated device a result or an entry of a status is about."""
    return device.get("driver"), device.get("pool"), device.get("device"), device.get("shareID")
