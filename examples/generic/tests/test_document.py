from __future__ import annotations

import pytest

import kdp
from kdp_example_generic.document import parse


def test_a_scalar_stays_the_text_that_was_written() -> None:
    item = parse("a: 0403\nb: no\nc: 1e3\nd: 2026-01-01\n", "f.yaml")

    assert [value.text("") for value in item.mapping("").values()] == ["0403", "no", "1e3", "2026-01-01"]


def test_a_value_knows_its_line_and_field() -> None:
    text = "resources:\n  - name: a\n  - name: b\n"

    item = parse(text, "f.yaml").mapping("")["resources"].items("")[1].mapping("")["name"]

    assert (item.where, item.line) == ("resources[1].name", 3)


def test_a_key_that_is_there_twice_is_refused_with_both_lines() -> None:
    with pytest.raises(kdp.ConfigurationError) as caught:
        parse("a: 1\nb: 2\na: 3\n", "f.yaml").mapping("")

    assert str(caught.value) == "f.yaml, line 3: a: is there twice (first in line 1); remove one"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("", "f.yaml: is empty"),
        ("a: [1\nb: 2", "f.yaml, line 2: must be one YAML document"),
        ("a: 1\n--- \nb: 2", "f.yaml, line 2: must be one YAML document"),
        ("a: \x00", "f.yaml: must be one YAML document"),
        ("[" * 5000, "f.yaml"),
    ],
)
def test_what_is_no_document_is_refused_with_its_line(text: str, start: str) -> None:
    with pytest.raises(kdp.ConfigurationError) as caught:
        parse(text, "f.yaml")

    assert str(caught.value).startswith(start)
