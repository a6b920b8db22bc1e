"""Every policy against plain formulas over all sets, and what a policy promises on its own."""

from __future__ import annotations

import math
import random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp import Device, InvalidValueError
from kdp.allocation import POLICIES, Choice, Topology, choose, explain

from ..strategies import effort, scaled
from .brute import Question, best_first, question

CASES = scaled(10_000)
PARTS = 10
"""Parts of the cases, so that they share the processors."""

UNHURRIED = math.inf


def ask(policy: str, asked: Question, *, why: bool = False) -> Choice:
    topology = Topology(asked.units, asked.links)
    return (explain if why else choose)(
        policy, asked.devices, asked.size, must_include=asked.must, topology=topology, budget=UNHURRIED
    )


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_linked_is_what_all_sets_say(part: int) -> None:
    for i in range(part, CASES, PARTS):
        asked = question(f"linked {i}")
        choice = ask("linked", asked)
        assert choice.chosen == best_first("linked", asked)[0], i
        assert choice.proven


@pytest.mark.drawn
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_and_its_runner_up_are_what_all_sets_say(policy: str) -> None:
    for i in range(scaled(300)):
        asked = question(f"{policy} {i}", most=9)
        best, *others = best_first(policy, asked)
        choice = ask(policy, asked, why=True)
        assert choice.chosen == best, i
        assert (choice.runner_up.chosen if choice.runner_up else None) == (others[0] if others else None), i


seeds = st.integers(0, 10**6).map(str)
policies = st.sampled_from(sorted(POLICIES))


@effort(150)
@given(policies, seeds, st.randoms(use_true_random=False))
def test_the_order_of_the_devices_changes_nothing(policy: str, seed: str, rng: random.Random) -> None:
    asked = question(seed)
    shuffled = list(asked.devices)
    rng.shuffle(shuffled)
    links = list(asked.links.items())
    rng.shuffle(links)
    again = attrs.evolve(asked, devices=tuple(shuffled), links=dict(links), must=asked.must[::-1])
    assert ask(policy, again).chosen == ask(policy, asked).chosen


@effort(150)
@given(policies, seeds, st.floats(0, 0.01))
def test_whatever_the_budget_the_answer_is_of_use(policy: str, seed: str, budget: float) -> None:
    """The kubelet would fill or cut any other answer at random (contract section 7)."""
    asked = question(seed, most=40)
    choice = choose(
        policy,
        asked.devices,
        asked.size,
        must_include=asked.must,
        topology=Topology(asked.units, asked.links),
        budget=budget,
    )
    assert len(set(choice.chosen)) == len(choice.chosen) == asked.size
    assert set(asked.must) <= set(choice.chosen) <= {device.id for device in asked.devices}


@effort(100)
@given(seeds)
def test_weights_that_are_scaled_change_nothing(seed: str) -> None:
    asked = question(seed)
    scaled = attrs.evolve(asked, links={pair: 1024 * weight for pair, weight in asked.links.items()})
    if any(asked.links.values()):
        assert ask("linked", scaled).chosen == ask("linked", asked).chosen


def devices(count: int, per_unit: int = 1) -> list[Device]:
    return [Device(id=f"gpu-{i}", unit=f"card-{i // per_unit}") for i in range(count)]


def test_a_single_device_is_taken_where_it_breaks_least() -> None:
    """Two islands of two and three: the one that is already odd gives its third."""
    links = {("gpu-0", "gpu-1"): 100.0, **{(f"gpu-{a}", f"gpu-{b}"): 100.0 for a, b in ((2, 3), (2, 4), (3, 4))}}
    plain = [Device(id=f"gpu-{i}") for i in range(6)]
    topology = Topology([d.id for d in plain], links)
    assert choose("linked", plain, 1, topology=topology).chosen == ("gpu-5",)
    assert choose("linked", plain[:5], 1, topology=topology).chosen == ("gpu-0",)
    assert choose("linked", plain[:5], 2, topology=topology).chosen == ("gpu-0", "gpu-1")


def test_partitions_of_one_card_are_nearer_than_any_link() -> None:
    cards = [f"card-{i}" for i in range(4)]
    topology = Topology(cards, {(a, b): 900 for a in cards for b in cards if a < b})
    assert choose("linked", devices(8, per_unit=2)[1:], 2, topology=topology).chosen == ("gpu-2", "gpu-3")


def test_an_answer_says_why() -> None:
    links = {("gpu-0", "gpu-1"): 0.5, ("gpu-1", "gpu-2"): 0.25}
    plain = [Device(id=f"gpu-{i}", numa_nodes=(i // 2,)) for i in range(3)]
    why = explain("linked", plain, 2, topology=Topology([d.id for d in plain], links))
    assert (why.policy, why.chosen, why.proven) == ("linked", ("gpu-0", "gpu-1"), True)
    assert dict(why.objective) == {"bottleneck": 0.5, "total": 0.5, "numa_nodes": 1, "harm": 0.25}
    assert why.runner_up is not None
    assert why.runner_up.chosen == ("gpu-1", "gpu-2")
    assert dict(why.runner_up.objective) == {"bottleneck": 0.25, "total": 0.25, "numa_nodes": 2, "harm": 0.5}
    assert explain("linked", plain, 1).objective["bottleneck"] is None


def test_a_search_that_ends_at_its_budget_says_so() -> None:
    rng = random.Random(1)  # noqa: S311 - for repeatability
    plain = devices(64)
    units = [device.unit for device in plain]
    topology = Topology(units, {(a, b): rng.randint(0, 1000) for a in units for b in units if a < b})
    choice = choose("linked", plain, 20, topology=topology, budget=0.0)
    assert not choice.proven
    assert len(choice.chosen) == 20


def test_packed_at_its_budget_still_breaks_few_units() -> None:
    plain = [Device(id=f"d-{i}", unit=f"u{i * i % 41}") for i in range(80)]
    choice = choose("packed", plain, 30, budget=-1.0)
    exact = choose("packed", plain, 30, budget=60)
    assert not choice.proven
    assert choice.objective["units"] == exact.objective["units"]


@pytest.mark.parametrize(
    ("policy", "size", "must", "what"),
    [
        ("best", 1, [], "policy 'best': must be one of first, packed, spread, numa, linked"),
        ("first", 0, [], "size 0: must be 1 or more"),
        ("linked", 5, [], "size 5: only 4 devices are available"),
        ("linked", 2, ["gpu-9"], "must-include 'gpu-9': must be one of the available devices"),
        ("linked", 1, ["gpu-0", "gpu-1"], "size 1: 2 devices must be included"),
    ],
)
def test_a_question_without_an_answer_is_refused(policy: str, size: int, must: list[str], what: str) -> None:
    with pytest.raises(InvalidValueError, match=what):
        choose(policy, devices(4), size, must_include=must)
