"""The start-up taint goes when the Node offers the devices, and nothing else goes with it."""

from __future__ import annotations

from typing import Any

import pytest

from kdp.cluster.nodes import taint_removal
from kdp.cluster.startup_taint import missing

KEY = "example.com/starting"
MINE = {"key": KEY, "effect": "NoSchedule"}
OTHERS = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute", "value": "x"}]


def applied(taints: list[dict[str, Any]], patch: Any) -> list[dict[str, Any]]:
    """Return the taints after a patch, as an API server applies it."""
    taints = list(taints)
    for step in patch:
        index = int(step["path"].removeprefix("/spec/taints/"))
        if step["op"] == "test":
            assert taints[index] == step["value"], "the API server refuses it"
        else:
            del taints[index]
    return taints


def test_only_taints_of_the_key_go() -> None:
    place = 1
    taints = [*OTHERS[:place], MINE, *OTHERS[place:], {**MINE, "effect": "NoExecute"}]
    assert applied(taints, taint_removal({"spec": {"taints": taints}}, KEY)) == OTHERS


@pytest.mark.parametrize("node", [{}, {"spec": {}}, {"spec": {"taints": OTHERS}}])
def test_without_the_taint_there_is_nothing_to_do(node: dict[str, Any]) -> None:
    assert taint_removal(node, KEY) == []


def test_taints_that_were_changed_meanwhile_refuse_the_patch() -> None:
    patch = taint_removal({"spec": {"taints": [OTHERS[0], MINE]}}, KEY)
    with pytest.raises(AssertionError):
        applied([MINE, OTHERS[0]], patch)


def test_resources_that_the_node_does_not_offer_yet_are_missing() -> None:
    node = {"status": {"allocatable": {"a/a": "1", "a/b": "0", "cpu": "4"}}}
    assert missing(node, ["a/a", "a/b", "a/c"]) == ("a/b", "a/c")
    assert missing({}, []) == ()
