"""What an API server checks and changes of an object: gates, immutable fields, the status of claims, patches. No I/O.

Source: ``k8s.io/kubernetes`` ``pkg/registry/resource`` (``resourceslice/strategy.go``, ``utils.go``) of 1.34 to 1.37.
What a ResourceSlice may hold it does not know: that a real server says.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, cast

from .status import ApiRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .status import Kind

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


# Patches of a Node. Only what kdp uses: a JSON patch may test, add, replace, and remove, in lists only test and remove;
# an application has labels. Of fields, labels and the amounts in ``status`` have owners, in ``metadata.managedFields``
# as a real server has them.

_AMOUNTS = ("capacity", "allocatable")


def json_patched(item: Object, patch: Sequence[Mapping[str, Any]], kind: Kind) -> Object:
    """Return an object changed by a JSON patch (RFC 6902).

    Raises:
        ApiRefused: A test fails, or a path does not exist (422).
    """
    changed = copy.deepcopy(item)
    for operation in patch:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place: Any = changed
        for part in parents:
            place = _child(place, part)
        if _is_list(place) and operation["op"] in ("test", "remove") and _child(place, last) is not None:
            if operation["op"] == "remove":
                del place[int(last)]
            elif place[int(last)] != operation["value"]:
                raise _unprocessable(kind, item, f"testing value {operation['path']} failed: test failed")
            continue
        if not isinstance(place, dict):
            raise _unprocessable(kind, item, f"{operation['op']} operation does not apply: doc is missing path")
        held = cast("Object", place)
        if operation["op"] == "test":
            if held.get(last) != operation["value"]:
                raise _unprocessable(kind, item, f"testing value {operation['path']} failed: test failed")
        elif operation["op"] == "remove":
            if last not in held:
                raise _unprocessable(kind, item, f"remove operation does not apply: doc is missing key: {last}")
            del held[last]
        else:
            held[last] = operation["value"]
    return changed


def _child(place: Any, name: str) -> Any:
    """Return a field of an object or an element of a list; None: there is none."""
    if isinstance(place, dict):
        return cast("Object", place).get(name)
    return place[int(name)] if _is_list(place) and name.isdigit() and int(name) < len(place) else None


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def with_owner(old: Object, new: Object, manager: str) -> Object:
    """Return an object with the amounts that changed owned by a manager."""
    entry = _entry(new, manager, "Update", "status")
    for part in _AMOUNTS:
        before, after = _amounts(old, part), _amounts(new, part)
        for name in {name for name in (*before, *after) if before.get(name) != after.get(name)}:
            for each in new["metadata"]["managedFields"]:
                _below(each, "f:status", f"f:{part}").pop(f"f:{name}", None)
            if name in after:
                _below(entry, "f:status", f"f:{part}")[f"f:{name}"] = {}
    return new


def applied(old: Object, given: Object, manager: str, kind: Kind, *, force: bool) -> Object:
    """Return a Node after a manager has applied labels.

    Raises:
        ApiRefused: Another manager owns one with another value (409), or the node is another one (409).
    """
    name = old["metadata"]["name"]
    if given["metadata"].get("uid") not in (None, old["metadata"]["uid"]):
        raise kind.conflict(name, "Precondition failed: UID in precondition differs")
    new = copy.deepcopy(old)
    wanted: Mapping[str, str] = given["metadata"].get("labels") or {}
    labels: dict[str, str] = new["metadata"].setdefault("labels", {})
    mine = _entry(new, manager, "Apply", "")
    others = [each for each in new["metadata"]["managedFields"] if each is not mine]
    conflicts = [
        (each["manager"], label)
        for label, value in wanted.items()
        for each in others
        if f"f:{label}" in _below(each, "f:metadata", "f:labels") and labels.get(label) != value
    ]
    if conflicts and not force:
        raise ApiRefused(
            409,
            f"Apply failed with {len(conflicts)} conflicts: "
            + ", ".join(f'conflict with "{who}": .metadata.labels.{label}' for who, label in conflicts),
        )
    for each in others if force else ():
        for who, label in conflicts:
            if each["manager"] == who:
                _below(each, "f:metadata", "f:labels").pop(f"f:{label}", None)
    before = {each.removeprefix("f:") for each in _below(mine, "f:metadata", "f:labels")}
    shared = {label for each in others for label in _below(each, "f:metadata", "f:labels")}
    for label in before - {*wanted}:
        if f"f:{label}" not in shared:
            labels.pop(label, None)
    labels.update(wanted)
    mine["fieldsV1"] = {"f:metadata": {"f:labels": {f"f:{label}": {} for label in wanted}}}
    if not wanted:
        new["metadata"]["managedFields"].remove(mine)
    return new


def _amounts(item: Object, part: str) -> Mapping[str, str]:
    status: Object = item.get("status") or {}
    found: Mapping[str, str] = status.get(part) or {}
    return found


def _entry(item: Object, manager: str, operation: str, subresource: str) -> Object:
    entries: list[Object] = item["metadata"].setdefault("managedFields", [])
    for each in entries:
        if (each["manager"], each["operation"], each.get("subresource", "")) == (manager, operation, subresource):
            return each
    made: Object = {"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsV1": {}}
    if subresource:
        made["subresource"] = subresource
    entries.append(made)
    return made


def _below(entry: Object, *path: str) -> Object:
    found: Object = entry.setdefault("fieldsV1", {})
    for name in path:
        found = found.setdefault(name, {})
    return found


def _unprocessable(kind: Kind, item: Object, why: str) -> ApiRefused:
    return ApiRefused(
        422,
        f"the server rejected our request due to an error in our request: {kind.plural} "
        f"{item['metadata']['name']}: {why}",
        reason="Invalid",
    )
