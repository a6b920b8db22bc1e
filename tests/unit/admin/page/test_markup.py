"""Elements: two forms of one thing, and one place in which texts are escaped."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from kdp.admin import page
from kdp.admin.page.markup import ATTRIBUTES, TAGS, element

from .samples import HOSTILE, Parsed

SCRIPT = Path(page.__file__).with_name("script.js").read_text()


def test_a_text_stays_a_text() -> None:
    for text in HOSTILE:
        made = element("p", text, aria_label=text).as_html()
        parsed = Parsed(made)
        assert parsed.tags == ["p"]
        assert [name for _, name, _ in parsed.attributes] == ["aria-label"]
        assert html.unescape(made).isprintable()


def test_both_forms_say_the_same() -> None:
    made = element("ul", element("li", "a", None, "", "b"), class_="c", data_label="d", role=None)
    assert made.as_html() == '<ul class="c" data-label="d"><li>ab</li></ul>'
    assert made.as_json() == ["ul", {"class": "c", "data-label": "d"}, ["li", {}, "a", "b"]]


@pytest.mark.parametrize("tag", ["script", "foreignObject"])
def test_no_tag_can_run_or_load_anything(tag: str) -> None:
    assert tag not in TAGS
    with pytest.raises(AssertionError):
        element(tag)


@pytest.mark.parametrize("name", ["onclick", "xlink:href", "ariaonclick"])
def test_no_attribute_can_run_or_load_anything(name: str) -> None:
    assert not ATTRIBUTES.fullmatch(name)
    with pytest.raises(AssertionError):
        element("p", **{name: "x"})


def test_the_script_makes_the_same_tags_and_attributes_and_no_others() -> None:
    lists = re.findall(r"new Set\((.*?)\.split", SCRIPT, re.DOTALL)
    words = [word for each in lists for word in "".join(map(json.loads, re.findall(r'"[^"]+"', each))).split()]
    assert sorted(words) == sorted(TAGS)
    [pattern] = re.findall(r"new RegExp\((.*?)\);", SCRIPT, re.DOTALL)
    joined = "".join(json.loads(text) for text in re.findall(r'"[^"]+"', pattern))
    assert joined == f"^({ATTRIBUTES.pattern})$"


def test_the_script_reads_nothing_as_html() -> None:
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
        assert word not in SCRIPT
