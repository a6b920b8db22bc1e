"""A `kdp.Device` as an entry of a ResourceSlice, and counter sets as the API has them.

`kdp.Device` has checked what can be wrong without a server; the rest is the server's to say. Names are sorted, so that
equal devices are equal bytes. An unhealthy device has a taint.

Amounts are written as the API server writes them, so that what is read back is what was sent. The server keeps a
quantity's kind of suffix (1024 or 1000) and writes the largest one that leaves a whole number: ``1024Mi`` is ``1Gi``,
``1.5`` is ``1500m`` (``k8s.io/apimachinery`` ``pkg/api/resource``). What has more than nine decimals or is beyond 63
bits it would change silently; we refuse that.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..errors import InvalidValueError
from ..model.claims import Taint
from ..model.devices import Version
from ..model.names import MAX_ATTRIBUTE_BYTES
from ..model.quantities import Amount, Quantity, exact
from ..supervision.conditions import is_withheld
from ..supervision.health import UNSPECIFIED
from .names import device_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..model.claims import RequestPolicy, TaintEffect
    from ..model.devices import AttributeValue, Device
    from ..supervision.health import DeviceHealth

RESOURCE: Final = "resource"
"""The attribute of a device that names its resource itself."""

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_LARGEST = 2**63 - 1


def in_short(resource: str) -> str:
    """Return a resource as the attribute `RESOURCE` has it: without its domain, if it is too long for an attribute."""
    return resource if len(resource) <= MAX_ATTRIBUTE_BYTES else resource.rpartition("/")[2]


def render_device(device: Device, standard: Mapping[str, AttributeValue]) -> dict[str, Any]:
    """Return a device as JSON has it.

    Args:
        device: The device.
        standard: More attributes; see `kdp.dra.standard_attributes`.

    Raises:
        InvalidValueError: The server would round an amount or cut it off, and say nothing; or an attribute has the
            name of kdp's own.
    """
    rendered: dict[str, Any] = {"name": device_name(device.id)}
    # Of a class with several resources, a DeviceClass selects one by this attribute.
    resource: Mapping[str, AttributeValue] = {} if device.resource is None else {RESOURCE: in_short(device.resource)}
    if resource and device.attributes.get(RESOURCE, resource[RESOURCE]) != resource[RESOURCE]:
        raise InvalidValueError(
            f"device {device.id!r}: attribute {RESOURCE!r} is kdp's own, and has the name of the device's resource; "
            "give yours another name, as 'model'"
        )
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


# -- taints ------------------------------------------------------------------------------------------------------------


def health_key(driver: str) -> str:
    """Return the key of the taint that an unhealthy device has."""
    return f"{driver}/unhealthy"


def tainted(
    devices: Iterable[Device], driver: str, effect: TaintEffect | None, health: Mapping[str, DeviceHealth]
) -> tuple[Device, ...]:
    """Return the devices with a taint on those that are unhealthy. The taint's value is the kind of the fault.

    A device that works and is withheld has ``NoSchedule`` in any case: no claim may get it, and no pod is evicted.

    Args:
        devices: The devices.
        driver: The driver's name, of which the taint's key is made.
        effect: The taint's; None: there is none.
        health: How those devices are that are not simply healthy, by id.
    """
    key = health_key(driver)

    def taint(device: Device) -> Device:
        chosen: TaintEffect | None = "NoSchedule" if is_withheld(device.health.conditions) else effect
        if chosen is None:
            return device
        kind = health[device.id].kind if device.id in health else UNSPECIFIED
        value = re.sub(r"[^A-Za-z0-9._-]+", "-", kind)[:63].strip("._-")  # of a label's form; it may be empty
        return attrs.evolve(device, taints=(*device.taints, Taint(key=key, effect=chosen, value=value)))

    return tuple(device if device.health.is_healthy else taint(device) for device in devices)


# -- amounts -----------------------------------------------------------------------------------------------------------


def canonical(amount: Amount) -> str:
    """Return an amount in the server's notation.

    Raises:
        InvalidValueError: The server would round it or cut it off.
    """
    value = exact(amount)
    nano = value * 10**9
    if abs(value) > _LARGEST or nano != int(nano):
        raise InvalidValueError(
            f"amount {amount}: must be at most {_LARGEST} and have at most 9 decimals: the API server would change it"
        )
    if isinstance(amount, Quantity) and amount.text.endswith("i") and abs(value) >= 1024 and value == int(value):
        return _suffixed(int(value), 1024, _BINARY)
    return _suffixed(int(nano), 1000, _DECIMAL)


def _suffixed(whole: int, base: int, suffixes: tuple[str, ...]) -> str:
    if whole == 0:
        return "0"
    place = 0
    while whole % base == 0 and place < len(suffixes) - 1:
        whole //= base
        place += 1
    return f"{whole}{suffixes[place]}"
