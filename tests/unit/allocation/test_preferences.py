from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from typing_extensions import override

import kdp
from kdp import Device
from kdp.allocation import POLICIES, Sharing, Topology, choose, share
from kdp.allocation.policies import Preferences, policy_in_force


class Plain(kdp.DeviceBackend):
    resource = "example.com/widget"

    @override
    def discover(self) -> list[Device]:
        return [Device(id=f"w{i}") for i in range(4)]


class Linked(Plain):
    @override
    def links(self, devices: Sequence[Device]) -> Mapping[tuple[str, str], float]:
        return {}


class Packed(Linked):
    policy = "packed"


@pytest.mark.parametrize(
    ("backend", "option", "name"),
    [
        (Plain(), None, None),
        (Plain(), "numa", "numa"),
        (Linked(), None, "linked"),
        (Linked(), "none", None),
        (Packed(), "first", "first"),
        (share(Packed(), Sharing(replicas=2)), "numa", "spread"),
        (share(Plain(), Sharing(replicas=2, placement="distinct")), None, "distinct-first"),
        (share(Linked(), Sharing(replicas=2, placement="distinct")), "numa", "distinct-numa"),
    ],
)
def test_which_policy_is_in_force(backend: kdp.DeviceBackend, option: str | None, name: str | None) -> None:
    policy = policy_in_force(backend, option)
    assert (policy.name if policy else None) == name


def request(size: int, *ids: str) -> kdp.PreferRequest:
    devices = tuple(Device(id=name) for name in ids)
    return kdp.PreferRequest(resource="example.com/widget", available=devices, must_include=(), size=size)


def test_an_answer_follows_the_links() -> None:
    preferences = Preferences(POLICIES["linked"])
    assert preferences.answer(request(2, "c", "b", "a")) == ("a", "b")
    preferences.topology = Topology("abc", {("b", "c"): 1})
    assert preferences.answer(request(2, "a", "b", "c")) == ("b", "c")


def test_distinct_takes_different_units_that_the_policy_chooses() -> None:
    units = ["a", "b", "c"]
    replicas = [Device(id=f"{unit}::{n}", unit=unit) for unit in units for n in range(2)]
    topology = Topology(units, {("b", "c"): 9, ("a", "b"): 1})
    policy = POLICIES["linked"].over_units()
    assert choose(policy, replicas, 2, topology=topology).chosen == ("b::0", "c::0")
    assert choose(policy, replicas, 2, topology=topology, must_include=["a::1"]).chosen == ("a::1", "b::0")
    assert choose(policy, replicas, 4, topology=topology).chosen == ("a::0", "a::1", "b::0", "c::0")
    assert choose(policy, replicas, 2, must_include=["a::0", "a::1"]).chosen == ("a::0", "a::1")
