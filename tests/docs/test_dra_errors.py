"""docs/reference/dra-errors.md has each sentence of the source about a claim, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/dra-errors.md"
SOURCE = sorted(file for room in ("dra", "cluster") for file in (ROOT / "src/kdp" / room).rglob("*.py"))
ANY = "…"
FOR_PEOPLE = ("ClaimError", "_Mistake", "_wrong", "ServeError", "NotReady")
"""Whatever is raised as one of these is read by a pod's author or a node's admin."""

ELSEWHERE = {
    # Behind "slices stay as they are"; a device plugin has it too.
    f"it returned {ANY}: must map counter sets to their counters",
}


def sentences() -> list[str]:
    """Return the first column of each row of the page's tables."""
    rows = [re.split(r" \| ", line)[0] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [row.removeprefix("| `").rstrip("`").replace("\\|", "|") for row in rows]


def text_of(node: ast.AST) -> str | None:
    """Return a text of the source with `ANY` for what is filled in; None: it is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(ANY if isinstance(part, ast.FormattedValue) else str(text_of(part)) for part in node.values)
    return None


def texts(*, raised: bool) -> Iterator[str]:
    """Return the texts of the source; only those that are raised for people, or all."""
    for file in SOURCE:
        for node in ast.walk(ast.parse(file.read_text())):
            if not raised:
                found = text_of(node)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FOR_PEOPLE:
                found = text_of(node.args[0]) if node.args else None
            else:
                found = None
            if found:
                yield re.sub(f"({ANY}|%s)+", ANY, found)


def fits(template: str, text: str) -> bool:
    """Whether a text of the source says a sentence, or a part of one."""
    pattern = ".+".join(re.escape(part) for part in template.split(ANY))
    return re.search(pattern, text) is not None


@pytest.fixture(scope="module")
def raised() -> list[str]:
    return sorted(set(texts(raised=True)) - ELSEWHERE)


def test_a_sentence_of_the_page_is_one_of_the_source() -> None:
    said = [text for text in texts(raised=False) if text.strip(f"{ANY}:. ")]
    for sentence in sentences():  # what is a third of a sentence or less is others' words
        assert any(fits(text, sentence) for text in said if len(text) >= len(sentence) / 3), sentence


def test_a_sentence_that_is_raised_is_on_the_page(raised: list[str]) -> None:
    for text in raised:
        assert any(fits(text, sentence) for sentence in sentences()), text


def test_the_source_was_read(raised: list[str]) -> None:
    assert len(raised) > 15
    assert not any(fits("a sentence that nobody says", sentence) for sentence in sentences())
