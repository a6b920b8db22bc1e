from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kdp
from kdp.errors import InvalidNameError
from kdp.model.labels import MOST_LABELS, check_node_label, checked_labels, default_labels, label_value

VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
"""Kubernetes' own rule (apimachinery, validation.IsValidLabelValue)."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("Tesla T4 (rev/2)™", "Tesla-T4-rev2"),
        ("ÄÖ", ""),
        ("x" * 62 + " yy", "x" * 62),
    ],
)
def test_a_products_name_becomes_a_value(text: str, value: str) -> None:
    assert label_value(text) == value


@pytest.mark.drawn
@given(st.text(max_size=200))
def test_any_text_becomes_a_value_that_kubernetes_takes(text: str) -> None:
    value = label_value(text)
    assert VALUE.fullmatch(value)
    assert len(value) <= 63
    assert label_value(value) == value


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("widget.count", "4", "must begin with a domain of yours and a slash"),
        ("example.com/" + "x" * 64, "4", "must be at most 63 letters"),
        ("Example.com/x", "4", "behind a lower-case domain"),
        ("node.kubernetes.io/x", "4", "the domain kubernetes.io is reserved"),
        (4, "4", "label name 4: must be text"),
        ("example.com/x", 4, "value 4 of label example.com/x: must be text, this is int"),
        ("example.com/x", "80 GB", "label example.com/x: label value '80 GB': must be at most 63"),
    ],
)
def test_a_wrong_label_is_refused_with_value_and_rule(name: Any, value: Any, words: str) -> None:
    with pytest.raises(InvalidNameError, match=re.escape(words)):
        check_node_label(name, value)


@pytest.mark.parametrize("name", ["example.com/widget.count", "feature.node.kubernetes.io/x-y"])
def test_a_right_label_is_taken(name: str) -> None:
    assert check_node_label(name, "") == (name, "")


def card(number: int, **more: Any) -> kdp.Device:
    held = {
        "attributes": {"product": "Card 3000", "driverVersion": kdp.Version("1.2.3")},
        "capacity": {"memory": kdp.Quantity("80Gi")},
    }
    return kdp.Device(id=f"card-{number}", **{**held, **more})


def test_the_default_is_count_product_memory_and_driver_by_resource() -> None:
    devices = [card(0), card(1), card(2, resource="example.com/other", attributes={}, capacity={})]
    assert default_labels(devices, "example.com/card") == {
        "example.com/card.count": "2",
        "example.com/card.product": "Card-3000",
        "example.com/card.memory": "81920",
        "example.com/card.driver-version": "1.2.3",
        "example.com/other.count": "1",
    }


def test_what_devices_differ_in_is_no_label() -> None:
    found = default_labels([card(0), card(1, attributes={"product": "Card 4000"})], "example.com/card")
    assert found == {"example.com/card.count": "2", "example.com/card.memory": "81920"}


def test_devices_that_do_not_exist_yet_are_not_counted() -> None:
    assert default_labels([card(0, exists=False)], "example.com/card") == {}
    assert default_labels([], "example.com/card") == {}


def test_a_long_resource_has_the_labels_that_fit() -> None:
    name = "example.com/" + "x" * 55
    assert {*default_labels([card(0)], name)} == {f"{name}.count", f"{name}.product", f"{name}.memory"}


def test_wrong_labels_are_left_out_and_the_others_go_on() -> None:
    labels, wrong = checked_labels({"example.com/a": "1", "b": "2", "example.com/c": 3})
    assert labels == {"example.com/a": "1"}
    assert len(wrong) == 2


def test_labels_without_end_are_cut() -> None:
    labels, wrong = checked_labels({f"example.com/x{i}": "" for i in range(1000)})
    assert len(labels) == MOST_LABELS
    assert wrong == [f"it returned more than {MOST_LABELS} labels; the others are left out"]


@pytest.mark.parametrize("found", [None, [("example.com/a", "1")]])
def test_what_is_no_mapping_is_refused(found: Any) -> None:
    with pytest.raises(kdp.InvalidValueError, match="must map labels to values"):
        checked_labels(found)
