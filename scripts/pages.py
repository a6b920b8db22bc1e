"""Checks what the pages and the source say of one another; ``make lint`` runs it.

Each link inside the repository leads somewhere. Each section of a contract that the source cites is a heading of
docs/explanation/kubelet.md, or of dra.md for the "DRA contract". Each test that a page names is there. Each page can be
reached from docs/index.md.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
EXPLANATION = ROOT / "docs/explanation"
PAGES = [
    *ROOT.glob("*.md"),
    *(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts),
    *(ROOT / "examples").glob("*/README.md"),
]
INDEX = ROOT / "docs/index.md"
FOLDERS = ("src", "testkit", "docs", "examples", "tests", "benchmarks", "demo", "scripts")

NUMBER = r"\d+(?:\.\d+)*"
CITATION = re.compile(
    rf"(DRA contract )?\b(?:section ({NUMBER}(?: and {NUMBER})?)|sections ({NUMBER}(?:(?:, | and ){NUMBER})*))"
)
ELSEWHERE = re.compile(rf"RFC \d+,? sections? {NUMBER}")
WRAP = re.compile(r"\"?\s*\n\s*(?:#\s|[\"*>])?\s*")


def main() -> int:
    """Print what is wrong; return 1 if anything is."""
    wrong = [*links(), *unreachable(), *citations(), *tests()]
    print("\n".join(wrong) or f"{len(PAGES)} pages: all links, sections, and tests are there")
    return 1 if wrong else 0


def links() -> Iterator[str]:
    """Find the links inside the repository that lead nowhere."""
    for page in PAGES:
        for target, path, anchor in targets(page):
            if not path.exists() or (anchor and anchor not in anchors(path)):
                yield f"{page.relative_to(ROOT)}: the link {target} leads nowhere"


def unreachable() -> Iterator[str]:
    """Find the pages to which no links lead from the index."""
    reached: set[Path] = set()
    ahead = [INDEX]
    while ahead:
        page = ahead.pop()
        reached.add(page)
        ahead += {path for _, path, _ in targets(page) if path in PAGES} - reached
    for page in set(PAGES) - reached:
        yield f"{page.relative_to(ROOT)}: no links lead here from {INDEX.relative_to(ROOT)}"


def targets(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Return a page's links inside the repository: as written, and their file and anchor."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        yield target, (page.parent / file).resolve() if file else page, anchor


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page has: one for each heading, and those it names."""
    text = page.read_text()
    heads = [re.sub(r"<.*?>", "", head) for head in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    named = set(re.findall(r'<a id="(.+?)"></a>', text))
    return named | {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def citations() -> Iterator[str]:
    """Find the sections that are cited and are no heading."""
    contracts = {False: EXPLANATION / "kubelet.md", True: EXPLANATION / "dra.md"}
    known = {dra: set(re.findall(r'<a id="([\d.]+)"></a>', page.read_text())) for dra, page in contracts.items()}
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))):
        if (
            path.suffix not in (".py", ".md", ".proto", ".go")
            or path in contracts.values()
            or {"bin", "_build"} & {*path.parts}
        ):
            continue
        flat = ELSEWHERE.sub("", re.sub(r"\s+", " ", WRAP.sub(" ", path.read_text())).replace("Section", "section"))
        for dra, one, several in CITATION.findall(flat):
            page = contracts[bool(dra)]
            for number in set(re.findall(NUMBER, one or several)) - known[bool(dra)]:
                yield f"{path.relative_to(ROOT)}: section {number} is no heading of {page.name}"


def tests() -> Iterator[str]:
    """Find the tests that pages name and that are not there."""
    for page in PAGES:
        for file, name in sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text()))):
            path = ROOT / file
            pattern = rf"^\s*(async )?def {name}\b" if name else ""
            if not path.is_file() or not re.search(pattern, path.read_text(), re.MULTILINE):
                yield f"{page.relative_to(ROOT)}: there is no test {file}{'::' if name else ''}{name}"


if __name__ == "__main__":
    sys.exit(main())
