"""Answers of the API server that are JSON, with parts that no reader should follow."""

from __future__ import annotations

import pytest

from kdp.cluster.answers import LEFT_OUT, object_of
from kdp.cluster.api import OddAnswerError


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize("levels", [101, 5000, 100_000])
def test_a_claim_that_is_nested_deeply_hid_all_others(levels: int) -> None:
    """Its parameters are any JSON that a tenant likes, and a list has the claims of all tenants."""
    item = b'{"metadata": {"name": "%b"}, "spec": {"parameters": %b}}'
    items = [item % (b"a", b'{"b": "[{"}'), item % (b"deep", nested(levels)), item % (b"c", b'"\\"]"')]
    content = b'{"kind": "List", "items": [%b]}' % b", ".join(items)

    found = object_of(content, "list resourceclaims")["items"]

    assert [each["metadata"]["name"] for each in found] == ["a", "deep", "c"]
    assert [found[0]["spec"]["parameters"], found[2]["spec"]["parameters"]] == [{"b": "[{"}, '"]']
    inner = found[1]["spec"]["parameters"]
    while isinstance(inner, list):
        (inner,) = inner
    assert inner == LEFT_OUT


def test_a_claim_with_a_number_of_thousands_of_digits_hid_all_others() -> None:
    found = object_of(b'{"items": [{"a": 1}, {"a": %b}, {"a": 2.5}]}' % (b"9" * 5000), "list resourceclaims")
    assert [each["a"] for each in found["items"]] == [1, LEFT_OUT, 2.5]


def test_brackets_that_do_not_match_are_no_json() -> None:
    with pytest.raises(OddAnswerError, match="is not JSON"):
        object_of(b'{"items": [' + b"[" * 5000 + b"}", "list resourceclaims")
