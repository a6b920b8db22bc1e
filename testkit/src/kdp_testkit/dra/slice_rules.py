"""What an API server has against a ResourceSlice, by field. No I/O.

Source: the DRA contract sections 3.1 and 3.2, and ``k8s.io/kubernetes`` ``pkg/apis/resource/validation`` of 1.34 to
1.37. The rules are the kit's own, so that kdp is not judged by its own code; a test compares the fields that they name
with those that a real server has named, case by case.

Rules, each with a mutant that the cases kill:

1. A list or a map that is too long is refused as a whole; its entries are not judged.
2. A name that must be unique is refused where it comes again.
3. Exactly one way of choosing nodes is given, and one that is false or empty is none.
4. From 1.35 on, counter sets and devices lie in slices of their own; before, a device's counters are in its slice.
5. An attribute has exactly one value, and texts have at most 64 bytes.
6. A request policy offers values or a range, never both, and its default is one of them or lies in it.
7. The range of a policy lies within the capacity, and its default and maximum are whole steps from its minimum.
8. Binding conditions and binding failure conditions need each other, and have no name in common.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import attrs

from .formats import dns_label, dns_subdomain, label_key, label_value, qualified_name, quantity, semantic_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from decimal import Decimal

Object = dict[str, Any]
Cause = tuple[str, str, str]
"""Reason, field and sentence, as the causes of a Status have them."""

_NODES: Final = ("nodeName", "nodeSelector", "allNodes")
_LISTS: Final = ("bools", "ints", "strings", "versions")
_TEXT_BYTES: Final = 64
_DEVICES: Final = 128
_ATTRIBUTES: Final = 32
_COUNTERS: Final = 32
_CONDITIONS: Final = 4
_VALUES: Final = 10


@attrs.frozen(kw_only=True)
class SliceLimits:
    """What differs by version; the table of the DRA contract section 3.2.

    Attributes:
        devices_with_extras: Devices of a slice of which one has taints, counters or lists.
        attribute_values: Values of a device's attributes; None: they are not counted.
        taints: Taints of a device.
        effects: Effects that a taint may have.
        has_lists: Whether attributes may be lists.
        separates_counters: Whether counter sets lie in slices without devices.
    """

    devices_with_extras: int = 64
    attribute_values: int | None = 48
    taints: int = 16
    effects: tuple[str, ...] = ("NoSchedule", "NoExecute", "None")
    has_lists: bool = True
    separates_counters: bool = True

    @classmethod
    def of(cls, kubernetes: str) -> SliceLimits:
        """Return the limits of a version, as ``1.37.1``."""
        minor = int(kubernetes.split(".")[1])
        if minor <= 34:
            return cls(
                devices_with_extras=_DEVICES,
                attribute_values=None,
                taints=4,
                effects=("NoSchedule", "NoExecute"),
                has_lists=False,
                separates_counters=False,
            )
        return cls(attribute_values=None, has_lists=False) if minor == 35 else cls()


def slice_causes(item: Mapping[str, Any], limits: SliceLimits) -> list[Cause]:
    """Return what is wrong with a ResourceSlice.

    Args:
        item: The object, with ``metadata`` and ``spec``.
        limits: Those of the server's version.
    """
    return list(_slice(item, limits))


def _slice(item: Mapping[str, Any], limits: SliceLimits) -> Iterator[Cause]:
    spec: Object = item["spec"]
    yield from _format(dns_subdomain, item.get("metadata", {}).get("name", ""), "metadata.name")
    driver: str = spec.get("driver", "")
    if rule := dns_subdomain(driver.lower(), 63):
        yield _invalid("spec.driver", driver, rule)
    yield from _pool(spec.get("pool", {}))
    yield from _nodes(spec, "spec", (*_NODES, "perDeviceNodeSelection"))
    if limits.separates_counters and "devices" in spec and "sharedCounters" in spec:
        yield _invalid("spec", "sharedCounters, devices", "only one of `sharedCounters` or `devices` is allowed")
    devices: list[Object] = spec.get("devices", [])
    most = limits.devices_with_extras if any(map(_has_extras, devices)) else _DEVICES
    if len(devices) > most:
        yield _too_many("spec.devices", len(devices), most)
    else:
        selects = bool(spec.get("perDeviceNodeSelection"))
        for index, device in enumerate(devices):
            yield from _device(device, f"spec.devices[{index}]", limits, selects_nodes=selects)
        yield from _duplicates("spec.devices", (device.get("name", "") for device in devices))
    sets: list[Object] = spec.get("sharedCounters", [])
    yield from _counter_sets(sets, "spec.sharedCounters", "name", 8, limits)
    if not limits.separates_counters:
        yield from _counters_in_slice(devices, sets)


def _pool(pool: Mapping[str, Any]) -> Iterator[Cause]:
    name: str = pool.get("name", "")
    if len(name) > 253 or any(map(dns_subdomain, name.split("/"))):
        yield _invalid("spec.pool.name", name, "must be DNS subdomains with '/' between them, at most 253 characters")
    if pool.get("resourceSliceCount", 0) < 1:
        yield _invalid("spec.pool.resourceSliceCount", pool.get("resourceSliceCount", 0), "must be greater than zero")
    if pool.get("generation", 0) < 0:
        yield _invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero")


def _nodes(holder: Mapping[str, Any], path: str, ways: Sequence[str]) -> Iterator[Cause]:
    """Judge how nodes are chosen for a slice or for one device."""
    chosen = 0
    for way in ways:
        if way not in holder:
            continue
        value = holder[way]
        chosen += bool(value)
        if way == "nodeName":
            yield from _format(dns_subdomain, value, f"{path}.nodeName")
        elif way == "nodeSelector":
            if path == "spec" and len(value.get("nodeSelectorTerms", ())) != 1:
                yield _invalid(f"{path}.nodeSelector.nodeSelectorTerms", "", "must have exactly one node selector term")
        elif value is not True:
            yield _invalid(f"{path}.{way}", value, "must be either unset or set to true")
    if chosen != 1:
        yield _invalid(path, chosen, f"exactly one of {', '.join(ways)} is required")


def _has_extras(device: Mapping[str, Any]) -> bool:
    values: Iterable[Object] = device.get("attributes", {}).values()
    has_list = any(kind in value for value in values for kind in _LISTS)
    return has_list or bool(device.get("taints")) or bool(device.get("consumesCounters"))


def _device(device: Mapping[str, Any], path: str, limits: SliceLimits, *, selects_nodes: bool) -> Iterator[Cause]:
    yield from _format(dns_label, device.get("name", ""), f"{path}.name")
    attributes: dict[str, Object] = device.get("attributes", {})
    capacity: dict[str, Object] = device.get("capacity", {})
    if len(attributes) + len(capacity) > _ATTRIBUTES:
        yield _invalid(path, len(attributes) + len(capacity), f"at most {_ATTRIBUTES} attributes and capacities")
    values = sum(max((len(value.get(kind, "1")) for kind in _LISTS), default=1) for value in attributes.values())
    if limits.attribute_values is not None and values > limits.attribute_values:
        yield _invalid(path, values, f"at most {limits.attribute_values} values of attributes")
    for name, value in attributes.items():
        yield from _format(qualified_name, name, f"{path}.attributes")
        yield from _attribute(value, f"{path}.attributes[{name}]", limits)
    for name, value in capacity.items():
        yield from _format(qualified_name, name, f"{path}.capacity")
        is_shared = bool(device.get("allowMultipleAllocations"))
        yield from _capacity(value, f"{path}.capacity[{name}]", is_shared=is_shared)
    yield from _taints(device.get("taints", []), f"{path}.taints", limits)
    yield from _counter_sets(device.get("consumesCounters", []), f"{path}.consumesCounters", "counterSet", 2, limits)
    if selects_nodes:
        yield from _nodes(device, path, _NODES)
    elif any(way in device for way in _NODES):
        yield _invalid(path, "", "node selection of a device needs perDeviceNodeSelection of its slice")
    yield from _binding_conditions(device, path)


def _attribute(value: Mapping[str, Any], path: str, limits: SliceLimits) -> Iterator[Cause]:
    if len(value) != 1:
        yield _invalid(path, ", ".join(value), "exactly one value must be specified")
    for kind, held in value.items():
        if kind not in _LISTS:
            yield from _value(kind, held, f"{path}.{kind}")
            continue
        if not limits.has_lists or not held:
            yield _invalid(f"{path}.{kind}", held, "must be supported by the server and not empty")
        for index, each in enumerate(held):
            yield from _value(kind.removesuffix("s"), each, f"{path}.{kind}[{index}]")


def _value(kind: str, held: Any, path: str) -> Iterator[Cause]:
    if kind == "int" and not -(2**63) <= held < 2**63:
        yield _invalid(path, held, "must be a 64-bit integer")
    if kind == "version":
        yield from _format(semantic_version, held, path)
    if kind in ("string", "version") and len(held.encode()) > _TEXT_BYTES:
        yield "FieldValueTooLong", path, f"Too long: may not be more than {_TEXT_BYTES} bytes"


def _taints(taints: Sequence[Mapping[str, Any]], path: str, limits: SliceLimits) -> Iterator[Cause]:
    if len(taints) > limits.taints:
        yield _too_many(path, len(taints), limits.taints)
        return
    for index, taint in enumerate(taints):
        yield from _format(label_key, taint.get("key", ""), f"{path}[{index}].key")
        yield from _format(label_value, taint.get("value", ""), f"{path}[{index}].value")
        if taint.get("effect") not in limits.effects:
            text = f'Unsupported value: "{taint.get("effect", "")}": supported values: {", ".join(limits.effects)}'
            yield "FieldValueNotSupported", f"{path}[{index}].effect", text


def _binding_conditions(device: Mapping[str, Any], path: str) -> Iterator[Cause]:
    fields = ("bindingConditions", "bindingFailureConditions")
    for field, other in (fields, fields[::-1]):
        names: list[str] = device.get(field, [])
        if len(names) > _CONDITIONS:
            yield _too_many(f"{path}.{field}", len(names), _CONDITIONS)
        else:
            for index, name in enumerate(names):
                yield from _format(label_key, name, f"{path}.{field}[{index}]")
        yield from _duplicates(f"{path}.{field}", names)
        if device.get(other) and not names:
            yield _invalid(f"{path}.{field}", "", f"must be set when {other} is set")
    for index, name in enumerate(device.get(fields[1], [])):
        if name in device.get(fields[0], []):
            yield _invalid(f"{path}.{fields[1]}[{index}]", name, f"must not be in {fields[0]} as well")


# -- counters ----------------------------------------------------------------------------------------------------------


def _counter_sets(
    sets: Sequence[Mapping[str, Any]], path: str, key: str, most: int, limits: SliceLimits
) -> Iterator[Cause]:
    """Judge counter sets, or what a device consumes of them; ``key`` is the field of a set's name."""
    if limits.separates_counters and len(sets) > most:
        yield _too_many(path, len(sets), most)
        return
    for index, each in enumerate(sets):
        yield from _format(dns_label, each.get(key, ""), f"{path}[{index}].{key}")
        counters: dict[str, Object] = each.get("counters", {})
        inner = f"{path}[{index}].counters"
        if not counters:
            yield "FieldValueRequired", inner, "Required value"
        if limits.separates_counters and len(counters) > _COUNTERS:
            yield _too_many(inner, len(counters), _COUNTERS)
            continue
        for name, counter in counters.items():
            yield from _format(dns_label, name, inner)
            yield from _amount(counter.get("value", ""), f"{inner}[{name}].value")
    yield from _duplicates(path, (each.get(key, "") for each in sets))


def _counters_in_slice(devices: Sequence[Object], sets: Sequence[Object]) -> Iterator[Cause]:
    """Judge what a server before 1.35 asks of counters, which lie beside the devices that consume them."""
    known = {each.get("name", ""): each.get("counters", {}) for each in sets}
    shared = sum(map(len, known.values()))
    if shared > _COUNTERS:
        yield _too_many("spec.sharedCounters", shared, _COUNTERS)
    total = 0
    for index, device in enumerate(devices):
        path = f"spec.devices[{index}]"
        consumed: list[Object] = device.get("consumesCounters", [])
        count = sum(len(each.get("counters", {})) for each in consumed)
        total += count
        if count > _COUNTERS:
            yield _too_many(path, count, _COUNTERS)
        for place, each in enumerate(consumed):
            field = f"{path}.consumesCounters[{place}]"
            name = each.get("counterSet", "")
            if name not in known:
                yield _invalid(f"{field}.counterSet", name, "must be a counter set of this slice")
            elif missing := each.get("counters", {}).keys() - known[name].keys():
                yield _invalid(f"{field}.counters", ", ".join(sorted(missing)), f"must be counters of {name}")
    if total > 1024:
        yield _too_many("spec.devices", total, 1024)


# -- capacity ----------------------------------------------------------------------------------------------------------


def _capacity(value: Mapping[str, Any], path: str, *, is_shared: bool) -> Iterator[Cause]:
    yield from _amount(value.get("value", ""), f"{path}.value")
    policy: Object | None = value.get("requestPolicy")
    if policy is None:
        return
    path = f"{path}.requestPolicy"
    if not is_shared:
        yield "FieldValueForbidden", path, "Forbidden: allowed only with allowMultipleAllocations"
        return
    amounts: dict[str, str] = {f"validRange.{name}": text for name, text in policy.get("validRange", {}).items()}
    amounts |= {f"validValues[{index}]": text for index, text in enumerate(policy.get("validValues", []))}
    amounts |= {"default": policy["default"]} if "default" in policy else {}
    unreadable = [cause for field, text in amounts.items() for cause in _amount(text, f"{path}.{field}")]
    yield from unreadable
    total = quantity(value.get("value", ""))
    if total is not None and not unreadable:
        yield from _policy(policy, total, path)


def _policy(policy: Mapping[str, Any], total: Decimal, path: str) -> Iterator[Cause]:
    """Judge a request policy of which all amounts are quantities."""
    offered = [field for field in ("validValues", "validRange") if policy.get(field) is not None]
    if len(offered) > 1:
        yield _invalid(path, ", ".join(offered), "exactly one policy can be specified")
    elif offered and "default" not in policy:
        yield "FieldValueRequired", f"{path}.default", "Required value"
    elif offered == ["validValues"]:
        values = [_number(text) for text in policy["validValues"]]
        yield from _policy_values(values, _number(policy["default"]), total, f"{path}.validValues")
    elif offered:
        bounds = {name: _number(text) for name, text in policy["validRange"].items()}
        yield from _policy_range(bounds, _number(policy["default"]), total, f"{path}.validRange")


def _policy_values(values: Sequence[Decimal], default: Decimal, total: Decimal, path: str) -> Iterator[Cause]:
    if len(values) > _VALUES:
        yield _too_many(path, len(values), _VALUES)
        return
    for index, value in enumerate(values):
        if value > total:
            yield _invalid(f"{path}[{index}]", value, "must be less than or equal to the capacity")
        if index and value < values[index - 1]:
            yield _invalid(f"{path}[{index}]", value, "values must be in ascending order")
    yield from _duplicates(path, values)
    if default not in values:
        yield _invalid(path, default, "the default must be one of the valid values")


def _policy_range(bounds: Mapping[str, Decimal], default: Decimal, total: Decimal, path: str) -> Iterator[Cause]:
    if "min" not in bounds:
        yield "FieldValueRequired", f"{path}.min", "Required value"
        return
    least, most = bounds["min"], bounds.get("max")
    if least > total:
        yield _invalid(f"{path}.min", least, "must be less than or equal to the capacity")
    if default < least or (most is not None and default > most):
        yield _invalid(f"{path}.default", default, "must be within the range")
    if most is not None and not least <= most <= total:
        yield _invalid(f"{path}.max", most, "must be between the minimum and the capacity")
    step = bounds.get("step")
    if step is not None:
        amounts = {"default": default, **bounds}
        yield from _policy_step(amounts, step, total, path)


def _policy_step(amounts: Mapping[str, Decimal], step: Decimal, total: Decimal, path: str) -> Iterator[Cause]:
    """Judge a step; the server calculates with whole numbers, rounded up."""
    if step <= 0:
        yield _invalid(f"{path}.step", step, "must be greater than zero")
        return
    least = amounts["min"]
    if least + step > total:
        yield _invalid(f"{path}.step", step, "one step above the minimum must be within the capacity")
    negative = [name for name, amount in amounts.items() if amount < 0]
    for name in negative:
        yield _invalid(f"{path}.{name}", amounts[name], "must be zero or more with a step")
    asked = [amounts[name] for name in ("default", "max") if name in amounts]
    if not negative and any((math.ceil(amount) - math.ceil(least)) % math.ceil(step) for amount in asked):
        yield _invalid(f"{path}.step", step, "default and maximum must be whole steps above the minimum")


# -- causes ------------------------------------------------------------------------------------------------------------


def _number(text: str) -> Decimal:
    number = quantity(text)
    assert number is not None, "its format has been judged"
    return number


def _amount(text: str, path: str) -> Iterator[Cause]:
    if quantity(text) is None:
        yield _invalid(path, text, "must be a quantity")


def _format(rule: Callable[[str], str], text: str, path: str) -> Iterator[Cause]:
    broken = rule(text)
    if broken:
        yield _invalid(path, text, broken)


def _invalid(path: str, value: object, rule: str) -> Cause:
    return "FieldValueInvalid", path, f'Invalid value: "{value}": {rule}'


def _too_many(path: str, count: int, most: int) -> Cause:
    return "FieldValueTooMany", path, f"Too many: {count}: must have at most {most} items"


def _duplicates(path: str, keys: Iterable[object]) -> Iterator[Cause]:
    seen: set[object] = set()
    for index, key in enumerate(keys):
        if key in seen:
            yield "FieldValueDuplicate", f"{path}[{index}]", f'Duplicate value: "{key}"'
        seen.add(key)
