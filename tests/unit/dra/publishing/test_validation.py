"""Our rules for ResourceSlices; tests/node/test_slices.py compares the same cases with a real API server."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.slice_cases import BAD, STRICTER, good

from kdp.dra.publishing.limits import Limits
from kdp.dra.publishing.validation import problems_of_pool, problems_of_slice

V134, V135, V136, V137 = (Limits.of(f"1.{minor}") for minor in (34, 35, 36, 37))
WORN = {"key": "worn", "effect": "NoSchedule"}


def paths(item: dict[str, Any], limits: Limits = V137) -> set[str]:
    return {problem.path for problem in problems_of_slice(item, limits)}


def with_device(**fields: Any) -> dict[str, Any]:
    item = good()
    item["spec"]["devices"][0].update(fields)
    return item


def test_a_good_slice_is_good_everywhere() -> None:
    assert [problems_of_slice(good(), limits) for limits in (V134, V135, V136, V137)] == [[]] * 4


def test_each_wrong_field_is_named() -> None:
    found = {case.name: paths(case.item) for case in (*BAD, *STRICTER)}
    assert found == {case.name: set(case.paths) for case in (*BAD, *STRICTER)}


def test_a_problem_says_the_value_and_the_rule() -> None:
    (problem,) = problems_of_slice(with_device(attributes={"a": {"string": "x" * 65}}), V137)
    assert problem.message == f"{'x' * 65!r} must have at most 64 bytes, this has 65"
    (problem,) = problems_of_slice(with_device(attributes={"a": {"version": "v1.2"}}), V137)
    assert problem.message.startswith("version 'v1.2': must be MAJOR.MINOR.PATCH")


# -- what differs by version -------------------------------------------------------------------------------------------


def combined(sets: int = 1, counters: int = 1, devices: int = 1) -> dict[str, Any]:
    """A slice as 1.34 wants it: counters beside the devices that consume them."""
    item = good()
    spec = item["spec"]
    spec["sharedCounters"] = [
        {"name": f"s{n}", "counters": {f"c{k}": {"value": "1"} for k in range(counters)}} for n in range(sets)
    ]
    consumes = [{"counterSet": each["name"], "counters": each["counters"]} for each in spec["sharedCounters"]]
    spec["devices"] = [{"name": f"d{n}", "consumesCounters": copy.deepcopy(consumes)} for n in range(devices)]
    return item


def test_counters_lie_beside_the_devices_before_1_35_and_never_after() -> None:
    assert paths(combined(), V134) == set()
    assert paths(combined(), V135) == paths(combined(), V137) == {"spec"}


def test_what_1_34_counts() -> None:
    assert paths(combined(sets=4, counters=8), V134) == set()
    assert paths(combined(sets=3, counters=11), V134) == {"spec.sharedCounters", "spec.devices[0]"}
    assert paths(combined(sets=32, devices=32), V134) == set()
    assert paths(combined(sets=32, devices=33), V134) == {"spec.devices"}


def test_taints_of_1_34() -> None:
    taints = [{"key": f"k{n}", "effect": "NoSchedule"} for n in range(5)]
    assert paths(with_device(taints=taints), V134) == {"spec.devices[0].taints"}
    assert paths(with_device(taints=taints[:4]), V134) == paths(with_device(taints=taints), V135) == set()
    none = [{"key": "k", "effect": "None"}]
    assert paths(with_device(taints=none), V134) == {"spec.devices[0].taints[0].effect"}
    assert paths(with_device(taints=none), V135) == set()


def test_slices_are_smaller_since_1_35_where_a_device_has_more() -> None:
    item = good()
    item["spec"]["devices"] = [{"name": f"d{n}", **({"taints": [WORN]} if n == 64 else {})} for n in range(65)]
    assert paths(item, V134) == set()
    assert paths(item, V135) == {"spec.devices"}


def test_lists_count_value_by_value() -> None:
    item = with_device(attributes={"a": {"strings": ["x"] * 48}})
    assert paths(item, V136) == set()
    assert paths(item, V135) == {"spec.devices[0].attributes[a].strings"}
    assert paths(with_device(attributes={"a": {"ints": [1] * 48}, "b": {"int": 1}}), V136) == {"spec.devices[0]"}
    assert paths(with_device(attributes={"a": {"strings": ["x", "y" * 65]}}), V137) == {
        "spec.devices[0].attributes[a].strings[1]"
    }
    assert paths(with_device(attributes={"a": {"versions": []}}), V137) == {"spec.devices[0].attributes[a].versions"}


# -- a pool ------------------------------------------------------------------------------------------------------------


def pool(*specs: dict[str, Any]) -> list[dict[str, Any]]:
    head = {"driver": "d", "pool": {"name": "p", "generation": 1, "resourceSliceCount": len(specs)}}
    return [{"spec": {**head, **spec}} for spec in specs]


COUNTERS = {"sharedCounters": [{"name": "s", "counters": {"c": {"value": "1"}}}]}


def test_a_pool_holds_together() -> None:
    device = {"name": "b", "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]}
    assert problems_of_pool(pool({"devices": [{"name": "a"}]}, {"devices": [device]}, COUNTERS)) == []


@pytest.mark.parametrize(
    ("items", "path"),
    [
        (pool({"devices": [{"name": "a"}]}, {"devices": [{"name": "a"}]}), "slices[1].spec.devices[0].name"),
        (pool(COUNTERS, COUNTERS), "slices[1].spec.sharedCounters[0].name"),
        (
            pool(
                {"devices": [{"name": "a", "consumesCounters": [{"counterSet": "t", "counters": {"c": {}}}]}]}, COUNTERS
            ),
            "slices[0].spec.devices[0].consumesCounters[0].counterSet",
        ),
        (pool({}, {})[:1], "slices[0].spec.pool.resourceSliceCount"),
    ],
)
def test_what_consumers_would_take_for_an_invalid_pool(items: list[dict[str, Any]], path: str | None) -> None:
    assert [problem.path for problem in problems_of_pool(items)] == ([] if path is None else [path])
