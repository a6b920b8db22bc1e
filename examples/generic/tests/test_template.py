from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdp_example_generic.template import Template


@given(st.text())
def test_any_text_with_its_braces_doubled_stays_itself(text: str) -> None:
    template = Template(text.replace("{", "{{").replace("}", "}}"))

    assert template.check(()) is None
    assert template.fields == frozenset()
    assert template.fill({}) == text


@given(st.text())
def test_a_text_that_passes_the_check_can_be_filled(text: str) -> None:
    template = Template(text)
    if template.check({"n", "name"}) is None:
        template.fill({"n": "1", "name": "x"})


def test_an_unknown_placeholder_is_refused_with_the_known_ones() -> None:
    assert Template("{nmae}").check({"name", "n"}) == "has the unknown placeholder {nmae}: must be one of {n}, {name}"


def test_a_lone_brace_and_an_attribute_are_refused() -> None:
    for text in ("{", "}", "{}", "{name", "{a.b}", "{a!r}", "{a[0]}", "{a:>9}"):
        assert "lone brace" in (Template(text).check({"a", "name"}) or ""), text
