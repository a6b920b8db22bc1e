"""Where the pods run: labels, taints, and how they are written."""

from __future__ import annotations

import re

import pytest

from kdp.admin.manifests.placement import LabelRule, Placement, Toleration
from kdp.errors import InvalidValueError


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("example.com/gpu=true", {"key": "example.com/gpu", "operator": "In", "values": ["true"]}),
        ("example.com/gpu=", {"key": "example.com/gpu", "operator": "In", "values": [""]}),
        ("canary!=yes", {"key": "canary", "operator": "NotIn", "values": ["yes"]}),
        ("canary", {"key": "canary", "operator": "Exists"}),
        ("!canary", {"key": "canary", "operator": "DoesNotExist"}),
    ],
)
def test_what_is_asked_for_of_a_label(text: str, expression: dict[str, object]) -> None:
    assert LabelRule.parse(text).expression() == expression


@pytest.mark.parametrize("text", ["", "a=b c", "a/b/c"])
def test_a_rule_that_the_api_would_refuse_is_refused_with_a_valid_one(text: str) -> None:
    with pytest.raises(
        InvalidValueError, match=f"^{re.escape(repr(text))} must be .* for example example.com/widget=true"
    ):
        LabelRule.parse(text)


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("gpu", {"key": "gpu", "operator": "Exists"}),
        ("gpu=a100", {"key": "gpu", "operator": "Equal", "value": "a100"}),
        ("gpu:NoExecute", {"key": "gpu", "operator": "Exists", "effect": "NoExecute"}),
        ("gpu=a100:NoSchedule", {"key": "gpu", "operator": "Equal", "value": "a100", "effect": "NoSchedule"}),
    ],
)
def test_a_toleration(text: str, document: dict[str, object]) -> None:
    assert Toleration.parse(text).document() == document


@pytest.mark.parametrize("text", ["", "gpu:noexecute"])
def test_a_toleration_that_the_api_would_refuse_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"for example example.com/widget:NoSchedule, or all, or none$"):
        Toleration.parse(text)


def test_one_of_the_classs_labels_is_enough_and_all_that_the_administrator_asks_for_must_hold() -> None:
    rules = tuple(map(LabelRule.parse, ("!canary", "pool=gpu", "zone!=b")))
    placed = Placement(image="i", node_labels=("a=1", "b=2"), node_rules=rules)

    assert placed.node_selector == {"kubernetes.io/os": "linux", "pool": "gpu"}
    assert placed.affinity is not None
    required = placed.affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    rest = [
        {"key": "canary", "operator": "DoesNotExist"},
        {"key": "zone", "operator": "NotIn", "values": ["b"]},
    ]
    assert required["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}, *rest]},
        {"matchExpressions": [{"key": "b", "operator": "In", "values": ["2"]}, *rest]},
    ]
    assert Placement(image="i", node_rules=rules[1:2]).affinity is None
