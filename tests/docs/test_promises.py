"""Each "never", "always", "nothing" and "once" that users read is listed with the tests that try to break it.

The list is promises.toml, whose head tells how to add to it; `sentences` says what is read.
"""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from itertools import chain
from pathlib import Path
from typing import cast

import pytest

from .sentences import ROOT, Passage, passages

pytestmark = pytest.mark.repository

LIST = tomllib.loads(Path(__file__).with_name("promises.toml").read_text())
PROMISES = cast("dict[str, dict[str, list[str]]]", LIST["promises"])
DESCRIPTIONS = cast("dict[str, dict[str, str]]", LIST["descriptions"])
IDIOMS = cast("dict[str, str]", LIST["idioms"])
PHRASES = {file: [*PROMISES.get(file, ()), *DESCRIPTIONS.get(file, ())] for file in {*PROMISES, *DESCRIPTIONS}}


@cache
def _read() -> list[Passage]:
    return passages()


def _unlisted(passage: Passage) -> list[str]:
    """Return the sentences of a passage with a word that stands in no phrase and in no idiom."""
    text = passage.text
    phrases = map(re.escape, PHRASES.get(passage.file, ()))
    spans = [match.span() for pattern in chain(phrases, IDIOMS) for match in re.finditer(pattern, text)]
    return [
        passage.sentence_at(start)
        for start, end in passage.words()
        if not any(first <= start and end <= last for first, last in spans)
    ]


@cache
def _tests_in(file: str) -> frozenset[str]:
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    nodes = ast.parse(path.read_text()).body
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_promise_is_listed() -> None:
    missing = [f"{each.file}: {sentence}" for each in _read() for sentence in _unlisted(each)]
    assert not missing, "listed neither as promise nor as description in tests/docs/promises.toml:\n" + "\n".join(
        dict.fromkeys(missing)
    )


def test_every_phrase_stands_in_its_file_once() -> None:
    found = {
        (file, phrase): sum(each.text.count(phrase) for each in _read() if each.file == file)
        for file, phrases in PHRASES.items()
        for phrase in phrases
    }
    wrong = [f"{file}: {count} times: {phrase}" for (file, phrase), count in found.items() if count != 1]
    assert not wrong, "a phrase of tests/docs/promises.toml must stand in its file once:\n" + "\n".join(wrong)
    wordless = [f"{file}: {phrase}" for file, phrase in found if not any(Passage(file=file, text=phrase).words())]
    assert not wordless, "phrases of tests/docs/promises.toml without a word of a promise:\n" + "\n".join(wordless)


def test_every_idiom_is_used() -> None:
    unused = [idiom for idiom in IDIOMS if not any(re.search(idiom, each.text) for each in _read())]
    assert not unused, f"idioms of tests/docs/promises.toml that stand nowhere: {', '.join(unused)}"


def test_every_promise_has_tests_that_are_there() -> None:
    named = [
        (file, phrase, test) for file, each in PROMISES.items() for phrase, tests in each.items() for test in tests
    ]
    gone = [
        f"{file}: {phrase}: {test}"
        for file, phrase, test in named
        if not (name := test.partition("::")[2]).startswith("test_") or name not in _tests_in(test.partition("::")[0])
    ]
    assert not gone, "tests that tests/docs/promises.toml names and that do not exist:\n" + "\n".join(gone)
    untried = [f"{file}: {phrase}" for file, each in PROMISES.items() for phrase, tests in each.items() if not tests]
    assert not untried, "promises of tests/docs/promises.toml without a test:\n" + "\n".join(untried)


def test_a_sentence_that_nobody_listed_is_found() -> None:
    passage = Passage(file="README.md", text="It works. It never fails (mostly). It ends at once.")

    assert _unlisted(passage) == ["It never fails (mostly)."]


def test_the_places_are_read() -> None:
    """A change of a folder's name must not leave the list to itself."""
    files = {each.file for each in _read()}
    assert {"README.md", "SECURITY.md", "src/kdp/model/backend.py", "src/kdp/deviceplugin/session.py"} <= files
    assert any(file.startswith("docs/how-to/") for file in files)
    assert any(file.startswith("testkit/") for file in files)
    assert not [file for file in files if not (ROOT / file).is_file()]
