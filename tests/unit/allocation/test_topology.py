from __future__ import annotations

import math
import tracemalloc

import pytest

from kdp import Device, InvalidValueError
from kdp.allocation import Topology, choose, links_of_matrix

UNITS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("links", "what"),
    [
        ({("a", "b"): 1.0, ("b", "a"): 2.0}, "link 'b' to 'a' is 2, in reverse it is 1: both must be the same"),
        ({("a", "b"): -1.0}, "link 'a' to 'b': -1.0 must be a finite number of 0 or more"),
        ({("a", "b"): math.nan}, "link 'a' to 'b': nan must be a finite number"),
        ({("a", "b"): "50"}, "link 'a' to 'b': '50' must be a finite number"),
        ({("x", "y"): 1.0}, "links name 'x', and no unit of the devices: the keys must be units"),
        ({"ab": 1.0}, "link 'ab': must be a pair of units"),
    ],
)
def test_a_wrong_link_is_refused(links: dict[tuple[str, str], float], what: str) -> None:
    with pytest.raises(InvalidValueError, match=what):
        Topology(UNITS, links)


def test_both_orders_with_one_weight_and_links_of_units_that_are_gone_are_fine() -> None:
    topology = Topology(UNITS, {("a", "b"): 3, ("b", "a"): 3.0, ("a", "gone"): 9})
    assert topology.weight("b", "a") == 3
    assert topology.weight("a", "c") == 0
    assert topology.weight("a", "a") == 6


@pytest.mark.parametrize(
    ("matrix", "what"),
    [
        ([[0, 1], [1, 0]], "the matrix has 2 rows for 3 units"),
        ([[0, 1, 1], [1, 0], [1, 1, 0]], "the row of 'b' has 2 weights for 3 units"),
        ([[0, 1, 1], [2, 0, 1], [1, 1, 0]], "link 'b' to 'a' is 2, in reverse it is 1"),
    ],
)
def test_a_wrong_matrix_is_refused(matrix: list[list[float]], what: str) -> None:
    with pytest.raises(InvalidValueError, match=what):
        links_of_matrix(UNITS, matrix)


def test_a_matrix_becomes_links_and_its_diagonal_is_not_read() -> None:
    links = links_of_matrix(UNITS, [[math.nan, 1, 2], [1, -1, 3], [2, 3, 0]])
    assert Topology(UNITS, links).weight("c", "b") == 3
    with pytest.raises(InvalidValueError, match="each must be named once"):
        links_of_matrix(["a", "a"], [[0, 1], [1, 0]])


def test_switches_are_a_tree_and_a_ring_is_none() -> None:
    switches = {
        ("a", "b"): 50.0,
        ("c", "d"): 50.0,
        ("a", "c"): 10.0,
        ("a", "d"): 10.0,
        ("b", "c"): 10.0,
        ("b", "d"): 10.0,
    }
    assert Topology("abcd", switches).tree is not None
    assert Topology("abcd", {("a", "b"): 1, ("b", "c"): 1, ("c", "d"): 1, ("d", "a"): 1}).tree is None
    assert Topology("abcd", {}).tree is not None
    assert Topology((), {}).tree is None


def test_a_unit_whose_own_devices_are_far_apart_makes_no_tree() -> None:
    assert Topology("ab", {("a", "b"): 5, ("a", "a"): 1, ("b", "b"): 9}).tree is None


def test_units_that_came_after_the_links_are_unconnected() -> None:
    topology = Topology("ab", {("a", "b"): 7})
    wider = topology.covering("abc")
    assert (wider.weight("a", "b"), wider.weight("a", "c")) == (7, 0)
    assert topology.covering("ba") is topology
    assert topology.covering("abc") is wider
    plain = [Device(id=unit) for unit in "abc"]
    assert choose("linked", plain, 2, topology=topology).chosen == ("a", "b")


def test_tenths_add_up_exactly() -> None:
    """In floating point 0.1 + 0.2 + 0.3 depends on the order, and one of two equal sets would win by it."""
    tenths = {("a", "b"): 0.1, ("b", "c"): 0.2, ("a", "c"): 0.3, ("d", "e"): 0.3, ("e", "f"): 0.2, ("d", "f"): 0.1}
    plain = [Device(id=unit) for unit in "abcdef"]
    for renamed in ("abcdef", "defabc", "bcaefd"):
        links = {(renamed["abcdef".index(x)], renamed["abcdef".index(y)]): w for (x, y), w in tenths.items()}
        assert choose("linked", plain, 3, topology=Topology("abcdef", links)).chosen == ("a", "b", "c")


def test_units_without_links_cost_no_matrix() -> None:
    """A backend with ``links`` may have ten thousand units that have none: that was a matrix of 800 MB."""
    tracemalloc.start()
    topology = Topology([f"seat-{i}" for i in range(10_000)], {("seat-1", "seat-2"): 5})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20
    assert (topology.weight("seat-2", "seat-1"), topology.weight("seat-1", "seat-3")) == (5, 0)
    assert topology.weight("seat-9", "seat-9") == topology.weight("seat-1", "seat-1") == 10
    assert topology.tree is not None
    assert len(topology.tree.children) == 9_999


@pytest.mark.parametrize("alone", ["a", "z"])
def test_a_unit_without_links_has_its_place_in_the_tree(alone: str) -> None:
    linked = {("b", "c"): 5, ("b", "d"): 1, ("c", "d"): 1}
    tree = Topology(["b", "c", "d", alone], linked).tree
    told = Topology(["b", "c", "d", alone], {**linked, ("b", alone): 0}).tree
    assert tree == told
    assert Topology([alone], {}).tree == Topology([alone], {(alone, alone): 1}).tree
