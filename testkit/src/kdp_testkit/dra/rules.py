"""What an API server checks and changes of a DRA object: gates, immutable fields, the status of claims. No I/O.

Source: ``k8s.io/kubernetes`` ``pkg/registry/resource`` (``resourceslice/strategy.go``, ``utils.go``) of 1.34 to 1.37.
What a ResourceSlice may hold it does not know: that a real server says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from .profiles import DraProfile

Object = dict[str, Any]
Cause = tuple[str, str, str]
"""Reason, field and sentence, as the causes of a Status have them."""
Allowed = Callable[[str, str, str, str], str | None]
"""Whether the account may: verb, resource with subresource, namespace, name; returns why not, or None."""

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


@attrs.frozen(kw_only=True)
class Account:
    """Who asks.

    Attributes:
        name: As ``system:serviceaccount:kube-system:driver``.
        node: The node that its token is bound to; "": to none.
        rules: What it may: verbs, resource with subresource, and names ("" for all) of each rule; None: everything.
    """

    name: str
    node: str = ""
    rules: tuple[tuple[frozenset[str], str, str], ...] | None = None

    @classmethod
    def allowed(cls, name: str, rules: Mapping[str, str], *, node: str = "") -> Account:
        """Return an account with its verbs by resource, with ``/NAME`` after a colon for a single name."""
        return cls(
            name=name,
            node=node,
            rules=tuple(
                (frozenset(verbs.split(",")), resource.partition(":")[0], resource.partition(":")[2])
                for resource, verbs in rules.items()
            ),
        )

    def may(self, verb: str, resource: str, name: str) -> bool:
        """Whether it may."""
        if self.rules is None:
            return True
        return any(verb in verbs and resource == of and only in ("", name) for verbs, of, only in self.rules)


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


def check_claim_status(
    new: Object, old: Mapping[str, Any], *, profile: DraProfile, account: Account, verb: str, allowed: Allowed
) -> list[Cause]:
    """Return what is wrong with a claim's new status: devices that are not allocated, and since 1.36 permissions."""
    status, before = new.get("status", {}), old.get("status", {})
    found: list[Cause] = []
    if "DRAResourceClaimGranularStatusAuthorization" in profile.gates:
        found += _binding(status, before, verb, allowed)
        if status.get("allocation") is not None:
            found += _devices(new["metadata"]["namespace"], status, before, account, verb, allowed)
    allocation: Object = status.get("allocation") or {}
    results: list[Object] = allocation.get("devices", {}).get("results", [])
    for index, each in enumerate(results):
        path = f"status.allocation.devices.results[{index}].skipNodeOperations"
        found += _skipping(each.get("skipNodeOperations"), path)
    known = {_key(each) for each in results}
    for index, device in enumerate(status.get("devices", ())):
        if _key(device) not in known:
            path = f"status.devices[{index}]"
            found.append(("FieldValueInvalid", path, "Invalid value: must be an allocated device in the claim"))
    return found


def _key(device: Mapping[str, Any]) -> tuple[Any, ...]:
    return device.get("driver"), device.get("pool"), device.get("device"), device.get("shareID")


def _binding(status: Mapping[str, Any], before: Mapping[str, Any], verb: str, allowed: Allowed) -> list[Cause]:
    if all(status.get(name) == before.get(name) for name in ("allocation", "reservedFor")):
        return []
    why = allowed(verb, "resourceclaims/binding", "", "")
    if why is None:
        return []
    text = (
        f"Forbidden: changing status.allocation or status.reservedFor requires "
        f'resource="resourceclaims/binding", verb="{verb}" permission: {why}'
    )
    return [("FieldValueForbidden", "status.allocation", text)]


def _devices(
    namespace: str,
    status: Mapping[str, Any],
    before: Mapping[str, Any],
    account: Account,
    verb: str,
    allowed: Allowed,
) -> list[Cause]:
    ours = {_key(device): device for device in status.get("devices", ())}
    theirs = {_key(device): device for device in before.get("devices", ())}
    changed = sorted({key[0] for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)})
    verbs = [f"arbitrary-node:{verb}"]
    if account.node and account.node == _node_of(status.get("allocation") or {}):
        verbs.insert(0, f"associated-node:{verb}")
    found: list[Cause] = []
    for driver in changed:
        refusals = [allowed(each, "resourceclaims/driver", namespace, driver) for each in verbs]
        if None not in refusals:
            text = (
                f'Forbidden: changing status.devices requires resource="resourceclaims/driver", '
                f'verb="[{" ".join(verbs)}]" permission: {refusals[0]}'
            )
            found.append(("FieldValueForbidden", "status.devices", text))
    return found


def _node_of(allocation: Mapping[str, Any]) -> str:
    """Return the node of an allocation for just one node, "" for any other."""
    match allocation.get("nodeSelector"):
        case {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]}:
            return str(name)
        case _:
            return ""
