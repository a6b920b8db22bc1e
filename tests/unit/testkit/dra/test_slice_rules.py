"""The kit's own rules of ResourceSlices: the same verdicts as a real server's, and as kdp's, case by case.

What a server says of each case is recorded in ``tests/slice_cases.py``; ``tests/node/test_slices.py`` asks it again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
from tests.slice_cases import BAD, STRICTER, WORN, good

from kdp.dra.publishing.limits import Limits
from kdp.dra.publishing.validation import problems_of_slice
from kdp_testkit.dra import slice_rules
from kdp_testkit.dra.slice_rules import SliceLimits, slice_causes

Object = dict[str, Any]
VERSIONS = ("1.34.4", "1.35.0", "1.36.3", "1.37.1")


def with_device(**fields: Any) -> Object:
    item = good()
    item["spec"]["devices"][0].update(fields)
    return item


def combined(sets: int = 1, counters: int = 1, devices: int = 1) -> Object:
    """A slice as 1.34 wants it: counters beside the devices that consume them."""
    item = good()
    spec = item["spec"]
    spec["sharedCounters"] = [
        {"name": f"s{n}", "counters": {f"c{k}": {"value": "1"} for k in range(counters)}} for n in range(sets)
    ]
    consumes = [{"counterSet": each["name"], "counters": each["counters"]} for each in spec["sharedCounters"]]
    spec["devices"] = [{"name": f"d{n}", "consumesCounters": copy.deepcopy(consumes)} for n in range(devices)]
    return item


def _consuming(**changes: Any) -> Object:
    item = combined()
    item["spec"]["devices"][0]["consumesCounters"][0].update(changes)
    return item


def _one_has_extras(**extras: Any) -> Object:
    item = good()
    item["spec"]["devices"] = [{"name": f"d{n}", **(extras if n == 64 else {})} for n in range(65)]
    return item


BY_VERSION: dict[str, Object] = {
    "good": good(),
    "combined": combined(),
    "combined, 32 counters": combined(sets=4, counters=8),
    "combined, 33 counters": combined(sets=3, counters=11),
    "combined, 1024 consumed": combined(sets=32, devices=32),
    "combined, 1056 consumed": combined(sets=32, devices=33),
    "another set": _consuming(counterSet="other"),
    "another counter": _consuming(counters={"other": {"value": "1"}}),
    "4 taints": with_device(taints=[{"key": f"k{n}", "effect": "NoSchedule"} for n in range(4)]),
    "5 taints": with_device(taints=[{"key": f"k{n}", "effect": "NoSchedule"} for n in range(5)]),
    "effect None": with_device(taints=[{"key": "k", "effect": "None"}]),
    "65 devices, one tainted": _one_has_extras(taints=[WORN]),
    "65 devices, one with a list": _one_has_extras(attributes={"a": {"ints": [1]}}),
    "48 values": with_device(attributes={"a": {"strings": ["x"] * 48}}),
    "49 values": with_device(attributes={"a": {"ints": [1] * 48}, "b": {"int": 1}}),
    "a long text in a list": with_device(attributes={"a": {"strings": ["x", "y" * 65]}}),
    "an empty list": with_device(attributes={"a": {"versions": []}}),
    "an integer of 65 bits": with_device(attributes={"a": {"int": 2**64}}),
    "no quantity": with_device(capacity={"a": {"value": "many"}}),
}
"""Slices on which the versions do not agree, or of which no server was asked."""


def _fields(module: Any, item: Object, version: str = VERSIONS[-1]) -> set[str]:
    causes: Iterable[tuple[str, str, str]] = module.slice_causes(item, module.SliceLimits.of(version))
    return {field for _, field, _ in causes}


def _kdps(item: Object, version: str) -> set[str]:
    return {problem.path for problem in problems_of_slice(item, Limits.of(version))}


def test_the_kit_names_the_fields_that_the_server_has_named() -> None:
    differ = {case.name: found for case in BAD if (found := _fields(slice_rules, case.item)) != set(case.paths)}
    assert not differ


def test_the_kit_takes_what_the_server_takes_though_kdp_refuses_it() -> None:
    refused = {case.name: found for case in STRICTER if (found := _fields(slice_rules, case.item))}
    assert not refused


@pytest.mark.parametrize("version", VERSIONS)
def test_kit_and_kdp_refuse_the_same_fields_for_every_version(version: str) -> None:
    slices = {**{case.name: case.item for case in BAD}, **BY_VERSION}
    differ = {
        name: {"kit": ours, "kdp": theirs}
        for name, item in slices.items()
        if (ours := _fields(slice_rules, item, version)) != (theirs := _kdps(item, version))
    }
    assert not differ


def test_a_cause_has_the_servers_reason_and_words() -> None:
    [cause] = slice_causes(with_device(name="GPU-0"), SliceLimits.of("1.37.1"))
    assert cause[:2] == ("FieldValueInvalid", "spec.devices[0].name")
    assert cause[2].startswith('Invalid value: "GPU-0": a lowercase RFC 1123 label must consist of')
