"""What is cited of a contract stands on its page, under its number.

That is docs/explanation/kubelet.md, and docs/explanation/dra.md where a DRA contract is cited.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kdp_testkit.conformance import CHECKS

from .blocks import ROOT

pytestmark = pytest.mark.repository

PAGE = ROOT / "docs" / "explanation" / "kubelet.md"
DRA_PAGE = ROOT / "docs" / "explanation" / "dra.md"

FOLDERS = ("src", "testkit", "docs", "examples", "tests", "benchmarks", "demo", "scripts")

_NUMBER = r"\d+(?:\.\d+)*"
_CITED = rf"(?:section ({_NUMBER}(?: and {_NUMBER})?)|sections ({_NUMBER}(?:(?:, | and ){_NUMBER})*))"
_CITATION = re.compile(rf"\b{_CITED}")
_DRA_CITATION = re.compile(rf"\bDRA contract {_CITED}")
_ELSEWHERE = re.compile(rf"RFC \d+,? sections? {_NUMBER}")
_WRAP = re.compile(r"\"?\s*\n\s*(?:#\s|[\"*>])?\s*")


def cited(text: str) -> set[str]:
    """Return the numbers of the sections that a text cites, also across the end of a line or of a string."""
    return _numbers(_CITATION, _DRA_CITATION.sub("", _flat(text)))


def cited_of_dra(text: str) -> set[str]:
    """Return the same of the DRA contract."""
    return _numbers(_DRA_CITATION, _flat(text))


def _flat(text: str) -> str:
    return _ELSEWHERE.sub("", re.sub(r"\s+", " ", _WRAP.sub(" ", text)).replace("Section", "section"))


def _numbers(citation: re.Pattern[str], flat: str) -> set[str]:
    return {number for match in citation.finditer(flat) for number in re.findall(_NUMBER, match[1] or match[2])}


def cited_faults(text: str) -> set[str]:
    """Return the numbers of the kubelet's faults that a text cites, as B3."""
    return set(re.findall(r"\bB\d{1,2}\b", text))


def sources() -> list[Path]:
    return [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".md", ".proto", ".go")
        and path not in (PAGE, DRA_PAGE, Path(__file__))
        and not path.name.endswith("_pb2.py")
    ]


def headings(page: Path = PAGE) -> dict[str, str]:
    """Return a page's sections by the number that their anchor and their heading both have."""
    found = re.findall(r'^#+ <a id="([\d.]+)"></a>([\d.]+) (.+)$', page.read_text(), re.MULTILINE)
    assert [anchor for anchor, _, _ in found] == [number for _, number, _ in found]
    return {number: title for number, _, title in found}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("(contract section 2.5, 1.37)", {"2.5"}),
        ("(contract sections 4.6, 6 and 7)", {"4.6", "6", "7"}),
        ("section 5 and 9: an id", {"5", "9"}),
        ("# refused (contract section\n    # 4.4), a dead file", {"4.4"}),
        ('rule="worse (section "\n    "6.3)"', {"6.3"}),
        ("(RFC 9113\n    section 6.5.2)", set()),
        ("contract section 14.7", {"14.7"}),
        ("DRA contract section 2.7; section 2.5 and 9", {"2.5", "9"}),
    ],
)
def test_a_citation_is_recognised(text: str, numbers: set[str]) -> None:
    assert cited(text) == numbers


def test_a_citation_of_the_dra_contract_is_recognised() -> None:
    assert cited_of_dra("(DRA contract\n    sections 2.3, 2.4 and 3.4), contract section 14") == {"2.3", "2.4", "3.4"}


def test_every_section_that_is_cited_is_a_heading() -> None:
    found = {path: path.read_text() for path in sources()}
    missing = {
        f"{path.relative_to(ROOT)}: {number} of {page.name}"
        for page, numbers_in in ((PAGE, cited), (DRA_PAGE, cited_of_dra))
        for path, text in found.items()
        for number in numbers_in(text) - headings(page).keys()
    }
    assert missing == set()


def test_the_modules_of_dra_cite_the_dra_contract() -> None:
    folders = [ROOT / "src" / "kdp" / "dra", ROOT / "testkit" / "src" / "kdp_testkit" / "dra"]
    modules = [path for folder in folders for path in folder.rglob("*.py")]
    assert {path.name: cited(path.read_text()) for path in modules if cited(path.read_text())} == {}
    assert sum(bool(cited_of_dra(path.read_text())) for path in modules) >= 5


def test_every_rule_of_the_kit_cites_a_section() -> None:
    numbers = headings()
    assert {
        check.id: cited(check.rule) - numbers.keys() for check in CHECKS if not cited(check.rule) & numbers.keys()
    } == {}


def test_every_fault_of_the_kubelet_that_is_cited_is_in_the_table() -> None:
    known = {name.upper() for name in re.findall(r'<a id="(b\d+)"></a>', PAGE.read_text())}
    used = {number for path in sources() if path.suffix == ".py" for number in cited_faults(path.read_text())}
    assert used - known == set()
    assert len(used) > 10


def test_no_docstring_cites_a_document_that_is_not_here() -> None:
    foreign = re.compile(r"\b(?:design|performance\.md|reference,) sections? \d")
    found = [path for path in sources() if foreign.search(re.sub(r"\s+", " ", path.read_text()))]
    assert found == []
