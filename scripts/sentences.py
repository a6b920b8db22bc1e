"""Finds sentences that have to be read twice; ``make lint`` runs it.

It reads the README, the tutorials, the how-to pages, and the messages of the source: errors, log lines, help texts, and
reasons. A sentence fails if it has more than `MOST` words, or one of the phrases in `PHRASES`. All messages are written
to ``build/messages.txt``, so that somebody can read them from top to bottom.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "examples/README.md",
    *sorted((ROOT / "docs/tutorial").glob("*.md")),
    *sorted((ROOT / "docs/how-to").glob("*.md")),
]
SOURCES: Final = ("src", "testkit/src", "examples")
MOST: Final = 30

PROGRAMS: Final = r"(?:kdp|kubelet|plugin|driver|server|kernel|runtime|scheduler|backend|NVML|firmware)"

PHRASES: Final = {
    # Who does what: name the actor, and let programs not be persons.
    r"^who (?:is|has|can|does|wants|needs|runs)\b[^?]*$": "name the actor: if a user ..., a client that ...",
    r"\bwhoever\b": "name the actor",
    r"\bits author\b": "the user, or the vendor",
    r"\bpod's author\b": "the user",
    r"\b(?:is|are|was|were) (?:not )?told\b": "programs receive, log, or report",
    r"\b(?:hears?|heard)\b": "receives, notices",
    rf"\b{PROGRAMS} (?:knows|tells?|told|does not (?:know|tell))\b": "programs have, report, support, or log",
    # Chains and inversions: subject, verb, object.
    r"\bof before\b": "name it: previous, earlier",
    r"\bthe same of\b": "name it again",
    r"\b(?:that|those) of (?:the|its|a|an|all) \w+ of\b": "name it again",
    r"\bno \w+ but\b": "say what it is",
    r"\bbut for (?:the|what|its|one|those)\b": "except",
    r"\bas (?:by|of) (?:the|a|its)\b": "if, for example by",
    r"\bso that (?:it|there|what|which) (?:is|are)\b": "so ...",
    r"\bof this (?:it|there) (?:is|are)\b": "say the subject first",
    r"\bnot (?:called|read|asked|tried) again before\b": "will be ... again only after",
    r"\buntil (?:\w+ ){1,3}(?:has|have|is|are|does|do) not\b": "say it positively",
    r"\bno more than it (?:is|was)\b": "say it positively",
    # Words of our own for standard things.
    r"\b(?:can|cannot|could|to) be had\b": "say what is missing",
    r"\blast of all\b": "finally",
    r"\bat last\b": "finally, or when",
    r"\bwithout a word\b": "silently",
    r"\bsay(?:s|ing)? nothing of\b": "does not mention",
    r"\bdaily life\b": "routine",
    r"\b(?:to bear|bears|(?:is|are|be) borne)\b": "tolerate",
    r"\bword of\b": "notification",
    r"\bthe wipe\b": "the kubelet's cleanup of its plugin directory",
    r"\bthe floor\b": "minimum polling interval",
    r"\bthe how manieth\b": "number of",
    r"\bin the middle of the other\b": "they never overlap",
    r"\b(?:works?|is there|are there|exists?|needed|valid) no more\b": "no longer",
    r"\bgoes? by unseen\b": "is missed",
    r"\bso many\b": "a number of, the number of",
    r"\bthat much\b": "say how much",
    r"\b(?:takes?|taken) \w+ (?:\w+ )?for (?:gone|free|dead|healthy|unhealthy|absent)\b": "treats ... as",
}
"""Patterns of how kdp does not write, and what to write instead."""

CODE: Final = re.compile(r"\{\{|<html|==|&&|\w=\d+ \w+=\d|^(?:str|tuple|list|dict|\w*Mapping|Sequence)\b.*\[|^#!")
"""Templates, expressions, types, and scripts: no sentences, although they have words."""

ALLOWED: Final[dict[str, str]] = {}
"""Beginnings of sentences that may stay, and why; at most ``MOST_ALLOWED``."""

MOST_ALLOWED: Final = 20


def main() -> int:
    """Print what is wrong; return 1 if anything is."""
    found = [*messages()]
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    (build / "messages.txt").write_text("".join(f"{place}: {text}\n" for place, text in found))
    texts = [*((place, text) for page in PAGES for place, text in paragraphs(page)), *found]
    wrong = [f"{place}: {problem}" for place, text in texts for problem in problems(text)]
    if len(ALLOWED) > MOST_ALLOWED:
        wrong.append(f"{len(ALLOWED)} sentences are allowed; rewrite some, {MOST_ALLOWED} may stay")
    print("\n".join(wrong) or f"{len(PAGES)} pages and {len(found)} messages: all sentences can be read once")
    return 1 if wrong else 0


def problems(text: str) -> Iterator[str]:
    """Say what is wrong with each sentence of a text."""
    for sentence in sentences(text):
        if any(sentence.startswith(beginning) for beginning in ALLOWED):
            continue
        count = len(re.findall(r"[^\W_][\w'/.-]*", sentence))
        if count > MOST:
            yield f"{count} words: {sentence}"
        for phrase, instead in PHRASES.items():
            if found := re.search(phrase, sentence, re.IGNORECASE):
                yield f"{found[0]!r} ({instead}): {sentence}"


def sentences(text: str) -> list[str]:
    """Split a text where a sentence ends."""
    return [each.strip() for each in re.split(r"(?<=[.!?])[\"'*_)]*\s+|;\s+|\n", text) if each.strip()]


def paragraphs(page: Path) -> Iterator[tuple[str, str]]:
    """Return the texts of a page with their places: paragraphs, items, headings, and cells, without code."""
    text = re.sub(
        r"^( *)```.*?^\1```$", lambda m: "\n" * m[0].count("\n"), page.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"``.+?``|`[^`]+`", "CODE", text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    name = page.relative_to(ROOT)
    block: list[str] = []
    first = 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        begins = re.match(r"\s*(?:[-*]|\d+\.)\s+|#+ |>\s?", line)
        if (not line.strip() or begins or line.startswith("|")) and block:
            yield f"{name}:{first}", " ".join(block)
            block = []
        if line.startswith("|"):
            yield from ((f"{name}:{number}", cell.strip()) for cell in line.strip("|").split("|"))
        elif line.strip():
            first = first if block else number
            block.append(line[begins.end() :].strip() if begins else line.strip())


def messages() -> Iterator[tuple[str, str]]:
    """Return what the source says to people, with its places."""
    for folder in SOURCES:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if "tests" in file.parts or file.name.endswith("_pb2.py"):
                continue
            tree = ast.parse(file.read_text())
            name = file.relative_to(ROOT)
            yield from ((f"{name}:{line}", text) for line, text in spoken(tree))


def spoken(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the strings of a module that are sentences, without templates and the docstrings of what is no command."""
    helps = {
        id(node.body[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any("command" in ast.unparse(each) for each in node.decorator_list)
    }
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and id(node) not in helps}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)} - {
        id(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
    }
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if id(node) in silent or id(node) in parts:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(each.value) if isinstance(each, ast.Constant) else "X" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if len(re.findall(r"[a-z]{2,}", text)) >= 4 and " " in text.strip() and not CODE.search(text):
            found.append(
                (
                    node.lineno,
                    "\n".join(" ".join(each.split()) for each in re.split(r"\n\s*\n|\n\s+(?=\d  |kdp )", text)),
                )
            )
    return sorted(found)


if __name__ == "__main__":
    sys.exit(main())
