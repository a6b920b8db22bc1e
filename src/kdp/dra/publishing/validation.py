"""What the API server would refuse of a ResourceSlice, with the paths of its fields, before it is sent.

The rules are those of ``k8s.io/kubernetes`` ``pkg/apis/resource/validation`` in versions 1.34 to 1.37; a test with a
real API server compares both over a list of cases. Where the server takes what nobody can use or what it would change
silently, we refuse it as well; the comments say so.

Objects are as JSON has them. One slice is judged by `problems_of_slice`, what the slices of one pool have to agree on
by `problems_of_pool`: that the server does not see, but the scheduler ignores a pool that breaks it.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, final

import attrs

from ...errors import InvalidValueError
from ...model.devices import Version
from ...model.names import check_attribute_name, check_counter_name, check_label_name, check_label_value
from ...model.quantities import Quantity
from ..amounts import canonical, parsed
from ..names import MAX_LABEL, MAX_OBJECT_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from decimal import Decimal

    from .limits import Limits

MAX_CONDITIONS = 4
MAX_POLICY_VALUES = 10

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*\Z")
_ONE_OF = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_LISTS = ("bools", "ints", "strings", "versions")
_INT64 = range(-(2**63), 2**63)
_Object = dict[str, Any]


@final
@attrs.frozen
class Problem:
    """One thing that is wrong.

    Attributes:
        path: The field, as the API server names it: ``spec.devices[0].attributes[x].string``.
        message: The value, the rule and what to do.
    """

    path: str
    message: str


def problems_of_slice(item: Mapping[str, Any], limits: Limits) -> list[Problem]:
    """Return what is wrong with a ResourceSlice.

    Args:
        item: The object, with ``metadata`` and ``spec``.
        limits: Those of the server.
    """
    return list(_slice(item, limits))


def problems_of_pool(items: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Return where the slices of one generation of a pool do not fit together; the paths begin with ``slices[0].``.

    Args:
        items: All of them.
    """
    return list(_pool(items))


# -- a slice -----------------------------------------------------------------------------------------------------------


def _slice(item: Mapping[str, Any], limits: Limits) -> Iterator[Problem]:
    name = item.get("metadata", {}).get("name", "")
    if len(name) > MAX_OBJECT_NAME or not _SUBDOMAIN.match(name):
        yield Problem("metadata.name", f"{name!r} must be a DNS name of at most {MAX_OBJECT_NAME} characters")
    spec: _Object = item["spec"]
    yield from _driver(spec.get("driver", ""), "spec.driver")
    yield from _pool_of_slice(spec.get("pool", {}))
    yield from _nodes(spec, "spec", _ONE_OF)
    devices: list[_Object] = spec.get("devices", [])
    sets: list[_Object] = spec.get("sharedCounters", [])
    if not limits.combined and "devices" in spec and "sharedCounters" in spec:
        yield Problem("spec", "devices and sharedCounters must lie in slices of their own since Kubernetes 1.35")
    most = limits.devices_with_more if any(_has_more(device) for device in devices) else limits.devices
    if len(devices) > most:
        yield _too_many("spec.devices", len(devices), most)
    else:
        for index, device in enumerate(devices):
            selects = bool(spec.get("perDeviceNodeSelection"))
            yield from _device(device, f"spec.devices[{index}]", limits, selects=selects)
        yield from _twice("spec.devices", [device.get("name", "") for device in devices])
    yield from _counter_sets(sets, "spec.sharedCounters", "name", limits.sets_per_slice, limits)
    if limits.combined:
        yield from _combined(devices, sets, limits)


def _has_more(device: Mapping[str, Any]) -> bool:
    """Return whether a device makes its slice one of 64."""
    has_list = any(kind in value for value in device.get("attributes", {}).values() for kind in _LISTS)
    return bool(device.get("taints") or device.get("consumesCounters")) or has_list


def _driver(name: str, path: str) -> Iterator[Problem]:
    # The server takes capitals; the kubelet's folders and CDI's vendors would not be found by them.
    if len(name) > MAX_LABEL or not _SUBDOMAIN.match(name):
        yield Problem(path, f"{name!r} must be a DNS name of at most {MAX_LABEL} lower-case characters")


def _pool_of_slice(pool: Mapping[str, Any]) -> Iterator[Problem]:
    name = pool.get("name", "")
    if len(name) > MAX_OBJECT_NAME or not all(map(_SUBDOMAIN.match, name.split("/"))):
        yield Problem("spec.pool.name", f"{name!r} must be DNS names with '/' between them, at most 253 characters")
    if pool.get("resourceSliceCount", 0) <= 0:
        yield Problem("spec.pool.resourceSliceCount", "must be above 0")
    if pool.get("generation", 0) < 0:
        yield Problem("spec.pool.generation", "must be 0 or more")


def _nodes(holder: Mapping[str, Any], path: str, kinds: Sequence[str]) -> Iterator[Problem]:
    given = [kind for kind in kinds if kind in holder]
    for kind in given:
        value = holder[kind]
        if kind == "nodeName" and not (0 < len(value) <= MAX_OBJECT_NAME and _SUBDOMAIN.match(value)):
            yield Problem(f"{path}.{kind}", f"{value!r} must be the name of a node")
        elif kind == "nodeSelector" and path == "spec" and len(value.get("nodeSelectorTerms", ())) != 1:
            yield Problem(f"{path}.{kind}.nodeSelectorTerms", "must be exactly one term")
        elif value is False:
            yield Problem(f"{path}.{kind}", "must be left out or true")
    if len([kind for kind in given if holder[kind]]) != 1:
        yield Problem(path, f"must have exactly one of {', '.join(kinds)}")


# -- a device ----------------------------------------------------------------------------------------------------------


def _device(device: Mapping[str, Any], path: str, limits: Limits, *, selects: bool) -> Iterator[Problem]:
    yield from _checked(check_counter_name, device.get("name", ""), f"{path}.name", "device name")
    attributes: _Object = device.get("attributes", {})
    capacity: _Object = device.get("capacity", {})
    if len(attributes) + len(capacity) > limits.attributes:
        yield Problem(
            path,
            (
                f"has {len(attributes)} attributes and {len(capacity)} capacities; at most {limits.attributes} "
                "together are allowed"
            ),
        )
    values = sum(len(next((value[kind] for kind in _LISTS if kind in value), "1")) for value in attributes.values())
    if limits.attribute_values is not None and values > limits.attribute_values:
        yield Problem(path, f"has {values} values of attributes; at most {limits.attribute_values} are allowed")
    for name, value in attributes.items():
        yield from _checked(check_attribute_name, name, f"{path}.attributes")
        yield from _attribute(value, f"{path}.attributes[{name}]", limits)
    for name, value in capacity.items():
        yield from _checked(check_attribute_name, name, f"{path}.capacity")
        yield from _capacity(
            value, f"{path}.capacity[{name}]", limits, shared=bool(device.get("allowMultipleAllocations"))
        )
    yield from _taints(device.get("taints", []), f"{path}.taints", limits)
    consumed = device.get("consumesCounters", [])
    yield from _counter_sets(consumed, f"{path}.consumesCounters", "counterSet", limits.sets_per_device, limits)
    kinds = _ONE_OF[:3]
    if selects:
        yield from _nodes(device, path, kinds)
    elif any(kind in device for kind in kinds):
        yield Problem(path, f"{', '.join(kinds)} are for slices with perDeviceNodeSelection")
    yield from _binding(device, path)


def _attribute(value: Mapping[str, Any], path: str, limits: Limits) -> Iterator[Problem]:
    for kind, held in value.items():
        if kind in _LISTS:
            if not limits.has_lists:
                yield Problem(f"{path}.{kind}", "lists need Kubernetes 1.36 and its gate DRAListTypeAttributes")
            elif not held:
                yield Problem(f"{path}.{kind}", "must not be empty")
            for index, each in enumerate(held):
                yield from _value(kind[:-1], each, f"{path}.{kind}[{index}]", limits)
        else:
            yield from _value(kind, held, f"{path}.{kind}", limits)
    if len(value) != 1:
        yield Problem(path, f"must have exactly one value, this has {len(value)}")


def _value(kind: str, held: Any, path: str, limits: Limits) -> Iterator[Problem]:
    match kind:
        case "string" | "version":
            size = len(held.encode())
            if kind == "version":
                yield from _checked(Version, held, path)
            if size > limits.value_bytes:
                yield Problem(path, f"{held!r} must have at most {limits.value_bytes} bytes, this has {size}")
        case "int":
            if held not in _INT64:
                yield Problem(path, f"{held} must fit 64 bits")
        case _:
            pass


def _capacity(value: Mapping[str, Any], path: str, limits: Limits, *, shared: bool) -> Iterator[Problem]:
    yield from _amount(value.get("value", ""), f"{path}.value")
    policy: _Object | None = value.get("requestPolicy")
    if policy is None:
        return
    path = f"{path}.requestPolicy"
    if not shared:
        yield Problem(path, "needs allowMultipleAllocations")
        return
    bounds: _Object = policy.get("validRange", {})
    amounts = [(f"{path}.default", policy["default"])] if "default" in policy else []
    amounts += [(f"{path}.validValues[{index}]", each) for index, each in enumerate(policy.get("validValues", []))]
    amounts += [(f"{path}.validRange.{name}", each) for name, each in bounds.items()]
    broken = [problem for where, text in amounts for problem in _amount(text, where)]
    yield from broken
    try:
        there = parsed(value["value"])
    except (InvalidValueError, KeyError):
        return
    if not broken:
        yield from _policy(policy, there, path, limits)


def _policy(policy: Mapping[str, Any], there: Decimal, path: str, limits: Limits) -> Iterator[Problem]:
    choices: list[str] = policy.get("validValues", [])
    if choices and "validRange" in policy:
        yield Problem(path, "validValues and validRange exclude each other")
    elif "default" not in policy:
        if choices or "validRange" in policy:
            yield Problem(f"{path}.default", "must be given with validValues and with validRange")
    elif choices:
        yield from _choices(policy["default"], choices, there, f"{path}.validValues")
    elif "validRange" in policy:
        yield from _range(policy["default"], policy["validRange"], there, f"{path}.validRange", limits)
    elif parsed(policy["default"]) > there:
        # The server takes it; no claim could ever be served.
        yield Problem(f"{path}.default", f"{policy['default']} must not be more than the capacity")


def _choices(default: str, choices: Sequence[str], there: Decimal, path: str) -> Iterator[Problem]:
    values = [parsed(text) for text in choices]
    for index in range(1, len(values)):
        if values[index] < values[index - 1]:
            yield Problem(f"{path}[{index}]", f"{choices[index]} must not be below the one before")
    if len(values) > MAX_POLICY_VALUES:
        yield _too_many(path, len(values), MAX_POLICY_VALUES)
    else:
        for index, value in enumerate(values):
            if value > there:
                yield Problem(f"{path}[{index}]", f"{choices[index]} must not be more than the capacity")
        yield from _twice(path, values)
    if parsed(default) not in values[:MAX_POLICY_VALUES]:
        yield Problem(path, f"default {default} must be one of them")


def _range(default: str, bounds: Mapping[str, str], there: Decimal, path: str, limits: Limits) -> Iterator[Problem]:
    if "min" not in bounds:
        yield Problem(f"{path}.min", "must be given")
        return
    numbers = {"default": parsed(default), **{name: parsed(text) for name, text in bounds.items()}}
    unusable = {name: _unusable(number, limits) for name, number in numbers.items()}
    least, most, step, asked = numbers["min"], numbers.get("max"), numbers.get("step"), numbers["default"]
    if least > there:
        yield Problem(f"{path}.min", f"{bounds['min']} must not be more than the capacity")
    if asked < least:
        yield Problem(f"{path}.default", f"default {default} must not be below min {bounds['min']}")
    if most is not None:
        if least > most:
            yield Problem(f"{path}.max", f"{bounds['max']} must not be below min {bounds['min']}")
        if most > there:
            yield Problem(f"{path}.max", f"{bounds['max']} must not be more than the capacity")
        if asked > most:
            yield Problem(f"{path}.default", f"default {default} must not be above max {bounds['max']}")
    yield from (Problem(f"{path}.{name}", f"{numbers[name]} {why}") for name, why in unusable.items() if why)
    if step is None:
        return
    if step <= 0:
        yield Problem(f"{path}.step", f"{bounds['step']} must be above 0")
        return
    if least + step > there:
        yield Problem(f"{path}.step", f"min plus one step {bounds['step']} must not be more than the capacity")
    if not any(unusable.values()) and any((value - least) % step for value in (asked, most) if value is not None):
        yield Problem(f"{path}.step", f"default and max must be min plus a multiple of step {bounds['step']}")


def _unusable(number: Decimal, limits: Limits) -> str:
    """Return why a server cannot calculate with an amount; "": it can."""
    if number < 0:
        return "must be 0 or more"  # the server says so only where there is a step
    if number == int(number):
        return ""
    if not limits.has_fractions:
        return "must be a whole number before Kubernetes 1.38"  # older servers round, and allocate what nobody said
    return "" if number * 1000 == int(number * 1000) else "must have at most 3 decimals"


def _taints(taints: Sequence[Mapping[str, Any]], path: str, limits: Limits) -> Iterator[Problem]:
    if len(taints) > limits.taints:
        yield _too_many(path, len(taints), limits.taints)
        return
    effects = ["NoSchedule", "NoExecute", *(["None"] if limits.has_effect_none else [])]
    for index, taint in enumerate(taints):
        yield from _checked(check_label_name, taint.get("key", ""), f"{path}[{index}].key")
        yield from _checked(check_label_value, taint.get("value", ""), f"{path}[{index}].value")
        if taint.get("effect", "") not in effects:
            yield Problem(f"{path}[{index}].effect", f"{taint.get('effect', '')!r} must be one of {', '.join(effects)}")


def _binding(device: Mapping[str, Any], path: str) -> Iterator[Problem]:
    wanted: list[str] = device.get("bindingConditions", [])
    failures: list[str] = device.get("bindingFailureConditions", [])
    for kind, names in (("bindingConditions", wanted), ("bindingFailureConditions", failures)):
        if len(names) > MAX_CONDITIONS:
            yield _too_many(f"{path}.{kind}", len(names), MAX_CONDITIONS)
        else:
            for index, name in enumerate(names):
                yield from _checked(check_label_name, name, f"{path}.{kind}[{index}]")
        yield from _twice(f"{path}.{kind}", names)
    for index, name in enumerate(failures):
        if name in wanted:
            yield Problem(
                f"{path}.bindingFailureConditions[{index}]", f"{name!r} must not be a binding condition as well"
            )
    if bool(wanted) != bool(failures):
        missing = "bindingFailureConditions" if wanted else "bindingConditions"
        yield Problem(f"{path}.{missing}", "binding conditions and binding failure conditions need each other")


# -- counters ----------------------------------------------------------------------------------------------------------


def _counter_sets(
    sets: Sequence[Mapping[str, Any]], path: str, name: str, most: int, limits: Limits
) -> Iterator[Problem]:
    if not limits.combined and len(sets) > most:
        yield _too_many(path, len(sets), most)
        return
    for index, each in enumerate(sets):
        yield from _checked(check_counter_name, each.get(name, ""), f"{path}[{index}].{name}")
        yield from _counters(each.get("counters", {}), f"{path}[{index}].counters", limits)
    yield from _twice(path, [each.get(name, "") for each in sets])


def _counters(counters: Mapping[str, Mapping[str, Any]], path: str, limits: Limits) -> Iterator[Problem]:
    if not counters:
        yield Problem(path, "must name at least one counter")
    if not limits.combined and len(counters) > limits.counters_per_set:
        yield _too_many(path, len(counters), limits.counters_per_set)
        return
    for name, counter in counters.items():
        yield from _checked(check_counter_name, name, path)
        yield from _amount(counter.get("value", ""), f"{path}[{name}].value")


def _combined(
    devices: Sequence[Mapping[str, Any]], sets: Sequence[Mapping[str, Any]], limits: Limits
) -> Iterator[Problem]:
    """Check what only servers before 1.35 count."""
    total = 0
    for index, device in enumerate(devices):
        consumed = sum(len(each.get("counters", {})) for each in device.get("consumesCounters", []))
        total += consumed
        if consumed > limits.consumed_per_device:
            yield Problem(
                f"spec.devices[{index}]",
                (
                    f"consumes {consumed} counters; at most {limits.consumed_per_device} are allowed before Kubernetes "
                    "1.35"
                ),
            )
    if total > limits.consumed_per_slice:
        yield Problem("spec.devices", f"consume {total} counters; at most {limits.consumed_per_slice} are allowed")
    shared = sum(len(each.get("counters", {})) for each in sets)
    if shared > limits.counters_per_slice:
        yield Problem("spec.sharedCounters", f"have {shared} counters; at most {limits.counters_per_slice} are allowed")
    yield from _unknown_counters(devices, sets, "")


def _unknown_counters(
    devices: Sequence[Mapping[str, Any]], sets: Iterable[Mapping[str, Any]], prefix: str
) -> Iterator[Problem]:
    known = {each.get("name", ""): set(each.get("counters", {})) for each in sets}
    for index, device in enumerate(devices):
        for place, each in enumerate(device.get("consumesCounters", [])):
            path = f"{prefix}spec.devices[{index}].consumesCounters[{place}]"
            name = each.get("counterSet", "")
            if name not in known:
                yield Problem(f"{path}.counterSet", f"{name!r} must be a counter set that is declared: {_few(known)}")
                continue
            for counter in sorted(set(each.get("counters", {})) - known[name]):
                yield Problem(f"{path}.counters", f"{counter!r} must be a counter of {name!r}: {_few(known[name])}")


def _few(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "") or "there is none"


# -- a pool ------------------------------------------------------------------------------------------------------------


def _pool(items: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    specs: list[_Object] = [item["spec"] for item in items]
    devices: Counter[str] = Counter()
    sets: Counter[str] = Counter()
    for index, spec in enumerate(specs):
        path = f"slices[{index}].spec"
        for kind, seen in (("devices", devices), ("sharedCounters", sets)):
            for place, each in enumerate(spec.get(kind, [])):
                seen[each["name"]] += 1
                if seen[each["name"]] > 1:
                    yield Problem(f"{path}.{kind}[{place}].name", f"{each['name']!r} is in the pool already")
        if spec["driver"] != specs[0]["driver"] or spec["pool"] != specs[0]["pool"]:
            yield Problem(f"{path}.pool", "driver, pool, generation and count must be those of the other slices")
        if spec["pool"]["resourceSliceCount"] != len(specs):
            yield Problem(f"{path}.pool.resourceSliceCount", f"must be {len(specs)}, the number of slices in the pool")
    declared = [each for spec in specs for each in spec.get("sharedCounters", [])]
    for index, spec in enumerate(specs):
        yield from _unknown_counters(spec.get("devices", []), declared, f"slices[{index}].")


# -- the parts ---------------------------------------------------------------------------------------------------------


def _too_many(path: str, count: int, most: int) -> Problem:
    return Problem(path, f"has {count} entries; at most {most} are allowed")


def _twice(path: str, keys: Sequence[object]) -> Iterator[Problem]:
    seen: set[object] = set()
    for index, key in enumerate(keys):
        if key in seen:
            yield Problem(f"{path}[{index}]", f"{key} is there twice")
        seen.add(key)


def _checked(check: Callable[[str], object], value: str, path: str, what: str = "") -> Iterator[Problem]:
    try:
        check(value)
    except InvalidValueError as error:
        yield Problem(path, f"{what} {value!r}: must be a DNS label of 1 to 63 characters" if what else str(error))


def _amount(text: str, path: str) -> Iterator[Problem]:
    """Check that an amount is one, and one that the server does not change silently."""
    try:
        canonical(Quantity(text))
    except InvalidValueError as error:
        yield Problem(path, str(error))
