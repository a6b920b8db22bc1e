"""A `kdp.Device` as an entry of a ResourceSlice, and counter sets as the API has them.

`kdp.Device` has checked what can be wrong without a server; the rest is the server's to say. Names are sorted, so that
equal devices are equal bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..model.devices import Version
from ..model.names import MAX_ATTRIBUTE_BYTES
from .amounts import canonical
from .names import device_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..model.claims import RequestPolicy, Taint
    from ..model.devices import AttributeValue, Device
    from ..model.quantities import Amount

RESOURCE: Final = "resource"
"""The attribute of a device that names its resource itself."""


def in_short(resource: str) -> str:
    """Return a resource as the attribute `RESOURCE` has it: without its domain, if it is too long for an attribute."""
    return resource if len(resource) <= MAX_ATTRIBUTE_BYTES else resource.rpartition("/")[2]


def render_device(device: Device, standard: Mapping[str, AttributeValue]) -> dict[str, Any]:
    """Return a device as JSON has it.

    Args:
        device: The device.
        standard: More attributes; see `kdp.dra.standard_attributes`.

    Raises:
        InvalidValueError: The server would round an amount or cut it off, and say nothing.
    """
    rendered: dict[str, Any] = {"name": device_name(device.id)}
    # Of a class with several resources, a DeviceClass selects one by this attribute.
    resource: Mapping[str, AttributeValue] = {} if device.resource is None else {RESOURCE: in_short(device.resource)}
    attributes = {**resource, **standard, **device.attributes}
    if attributes:
        rendered["attributes"] = {name: _attribute(attributes[name]) for name in sorted(attributes)}
    if device.capacity:
        policies = device.shareable or {}
        rendered["capacity"] = {
            name: _capacity(device.capacity[name], policies.get(name)) for name in sorted(device.capacity)
        }
    if device.consumes:
        rendered["consumesCounters"] = [
            {"counterSet": name, "counters": _counters(device.consumes[name])} for name in sorted(device.consumes)
        ]
    if device.taints:
        rendered["taints"] = [_taint(taint) for taint in device.taints]
    binding = device.binding_conditions
    if binding is not None:
        if binding.binds_to_node:
            rendered["bindsToNode"] = True
        rendered["bindingConditions"] = list(binding.conditions)
        rendered["bindingFailureConditions"] = list(binding.failure_conditions)
    if device.shareable is not None:
        rendered["allowMultipleAllocations"] = True
    return rendered


def render_counters(name: str, counters: Mapping[str, Amount]) -> dict[str, Any]:
    """Return a counter set as JSON has it."""
    return {"name": name, "counters": _counters(counters)}


def _counters(counters: Mapping[str, Amount]) -> dict[str, Any]:
    return {name: {"value": canonical(counters[name])} for name in sorted(counters)}


def _attribute(value: AttributeValue) -> dict[str, Any]:
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case Version():
            return {"version": value.text}
        case _:
            return {"string": value}


def _capacity(amount: Amount, policy: RequestPolicy | None) -> dict[str, Any]:
    rendered: dict[str, Any] = {"value": canonical(amount)}
    if policy is not None:
        rendered["requestPolicy"] = _policy(policy)
    return rendered


def _policy(policy: RequestPolicy) -> dict[str, Any]:
    bounds = (("min", policy.min), ("max", policy.max), ("step", policy.step))
    valid_range = {name: canonical(amount) for name, amount in bounds if amount is not None}
    rendered: dict[str, Any] = {}
    if policy.default is not None:
        rendered["default"] = canonical(policy.default)
    if policy.valid_values:
        rendered["validValues"] = [canonical(amount) for amount in policy.valid_values]
    if valid_range:
        rendered["validRange"] = valid_range
    return rendered


def _taint(taint: Taint) -> dict[str, Any]:
    rendered = {"key": taint.key, "effect": taint.effect}
    return {"key": taint.key, "value": taint.value, "effect": taint.effect} if taint.value else rendered
