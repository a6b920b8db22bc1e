"""The whole page, the JSON beside it, and the policy that goes with both."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from kdp.admin.page.shell import StatusPage

from .samples import HOSTILE, Parsed, asked, device, document, event, hostile_document, resource


def between(page: str, tag: str) -> str:
    [text] = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return str(text)


def policy() -> dict[str, str]:
    pairs = (each.partition(" ") for each in dict(StatusPage().headers)["Content-Security-Policy"].split("; "))
    return {name: value for name, _, value in pairs}


def test_the_policy_allows_the_script_and_the_style_of_the_page_and_nothing_else() -> None:
    page, found = StatusPage().live([asked(document())]), policy()
    for name, tag in (("script-src", "script"), ("style-src", "style")):
        digest = base64.b64encode(hashlib.sha256(between(page, tag).encode()).digest()).decode()
        assert found[name] == f"'sha256-{digest}'"
    assert found["default-src"] == found["base-uri"] == found["form-action"] == found["frame-ancestors"] == "'none'"
    assert (found["connect-src"], found["img-src"]) == ("'self'", "data:")
    assert (found["require-trusted-types-for"], found["trusted-types"]) == ("'script'", "'none'")


def test_it_names_no_other_address() -> None:
    parsed = Parsed(StatusPage().live([asked(hostile_document("https://example.com/x.js"))]))
    links = {value for _, name, value in parsed.attributes if name in ("href", "src", "action")}
    assert links == {"data:,"}
    assert parsed.tags.count("script") == parsed.tags.count("style") == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_others_change_neither_the_page_nor_its_json(text: str) -> None:
    page = StatusPage()
    harmless, hostile = (Parsed(page.live([asked(hostile_document(each))])) for each in ("harmless", text))
    assert hostile.tags == harmless.tags
    tree = page.tree([asked(hostile_document(text))])
    assert tree.count("\n") == 1
    assert tree.isascii()
    assert json.loads(tree)["content"][0] == "main"


def test_the_json_is_the_content_of_the_page() -> None:
    made = [asked(document(resource(device()), events=[event()]))]

    def as_html(tree: object) -> str:
        if isinstance(tree, str):
            return tree
        assert isinstance(tree, list)
        tag, attributes, *children = tree
        text = "".join(f' {name}="{value}"' for name, value in attributes.items())
        return f"<{tag}{text}>{''.join(map(as_html, children))}</{tag}>"

    page = StatusPage()
    ages = re.compile(r"\(\d+ [a-z]+\)")
    shown = ages.sub("", page.live(made))
    assert ages.sub("", as_html(json.loads(page.tree(made))["content"])) in shown
    assert json.loads(page.tree(made))["title"] == "Ready: devices of worker-7"


@pytest.mark.parametrize("text", HOSTILE)
def test_a_file_has_no_script_and_forbids_all_but_its_style(text: str) -> None:
    page = StatusPage().file([asked(hostile_document(text)), asked(None, text, problem=text)])
    parsed = Parsed(page)
    assert "script" not in parsed.tags
    contents = [value for tag, name, value in parsed.attributes if (tag, name) == ("meta", "content")]
    [policy_of_file] = [each for each in contents if "default-src" in each]
    style = base64.b64encode(hashlib.sha256(between(page, "style").encode()).digest()).decode()
    assert policy_of_file.split("; ") == [
        "default-src 'none'",
        f"style-src 'sha256-{style}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert "It does not refresh itself." in parsed.text
