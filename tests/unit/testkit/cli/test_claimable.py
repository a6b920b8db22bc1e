from __future__ import annotations

from typing import Any

import pytest

from kdp_testkit.cli.claimable import claimable, keeping, share, sizes

Object = dict[str, Any]


def device(name: str, **more: Any) -> Object:
    return {"name": name, **more}


def published(*devices: Object, pool: str = "node0", **more: Any) -> Object:
    return {"spec": {"pool": {"name": pool}, "devices": [*devices], **more}}


def kinds(*slices: Object) -> list[list[str]]:
    return [[f"{pool}/{each['name']}" for pool, each in found] for found in claimable(slices)]


def names(*slices: Object) -> list[str]:
    found = kinds(*slices)
    assert len(found) <= 1
    return found[0] if found else []


@pytest.mark.parametrize(("number", "expected"), [(0, []), (3, [1, 2, 3]), (100, [1, 2, 8])])
def test_claims_have_one_device_two_and_all_up_to_eight(number: int, expected: list[int]) -> None:
    assert sizes(number) == expected


def test_a_device_with_a_taint_is_left_out_unless_it_only_informs() -> None:
    ill = device("ill", taints=[{"key": "kdp/unhealthy", "effect": "NoSchedule"}])
    told = device("told", taints=[{"key": "kdp/old", "effect": "None"}])
    assert names(published(ill, told)) == ["node0/told"]
    assert (keeping(ill), keeping(told)) == (["kdp/unhealthy"], [])


def test_devices_of_two_kinds_are_in_no_claim_together() -> None:
    slices = published(
        device("gpu-0", attributes={"type": {"string": "gpu"}}),
        device("mig-0", attributes={"type": {"string": "mig"}}),
        device("plain", attributes={}),
        device("gpu-1", attributes={"type": {"string": "gpu"}}),
    )
    assert kinds(slices) == [["node0/gpu-0", "node0/gpu-1"], ["node0/mig-0"], ["node0/plain"]]


def test_an_attribute_of_one_device_alone_makes_no_other_kind() -> None:
    slices = published(*(device(f"gpu-{i}", attributes={"uuid": {"string": str(i)}}) for i in range(2)))
    assert names(slices, published(device("gpu-2", attributes={"uuid": {"string": "2"}}), pool="other")) == [
        "node0/gpu-0",
        "node0/gpu-1",
        "other/gpu-2",
    ]


def test_devices_use_no_more_of_a_counter_than_there_is() -> None:
    """As the parts of a card that is divided: the whole, or its halves."""

    def using(name: str, memory: str) -> Object:
        uses = [{"counterSet": "card", "counters": {"memory": {"value": memory}}}]
        return device(name, consumesCounters=uses)

    counters = [{"name": "card", "counters": {"memory": {"value": "80Gi"}}}]
    only_counters = published(pool="node0", sharedCounters=counters)
    halves = published(using("half-0", "40Gi"), using("whole", "80Gi"), using("half-1", "40Gi"), using("more", "1"))
    assert names(only_counters, halves) == ["node0/half-0", "node0/half-1"]
    assert names(only_counters, published(using("whole", "80Gi"), using("half", "40960Mi"))) == ["node0/whole"]
    assert names(halves) == []  # of which counters nobody tells


def test_a_shared_device_is_given_as_a_share() -> None:
    capacity = {"bandwidth": {"value": "10", "requestPolicy": {"default": "2"}}, "queues": {"value": "4"}}
    found = share(device("link", allowMultipleAllocations=True, capacity=capacity))
    assert found["consumedCapacity"] == {"bandwidth": "2", "queues": "4"}
    assert len(found["shareID"]) == 36
    assert share(device("gpu", capacity=capacity)) == {}
