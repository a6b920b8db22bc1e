"""What kdp's pages and docstrings say with the words of a promise: "never", "always", "nothing" and "once".

Read are README.md, SECURITY.md, the how-to pages and docs/explanation/trust.md, without their code blocks; the
docstring at the head of each module of kdp; and the docstrings of what `kdp`, `kdp.hardware` and `kdp.testing` export
and of DRA's two programs, with their public methods. All are read as text; no module of kdp is imported.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ROOT", "Passage", "passages"]

ROOT = Path(__file__).parents[2]

_PAGES = ("README.md", "SECURITY.md", "docs/explanation/trust.md")
_STUBS = {  # where the names of a package are listed, and the directory that absolute names in it start from
    "src/kdp/__init__.pyi": "src",
    "src/kdp/hardware/__init__.pyi": "src",
    "testkit/src/kdp_testkit/__init__.pyi": "testkit/src",
}
_DRA = ("driver.py", "controller.py")
_DEFINED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_WORD = re.compile(r"\b(never|always|nothing|once)\b", re.IGNORECASE)
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^\s*([-*]|\d+\.|\|) ?")
_END = re.compile(r"(?<=[.!?])[*_`)\"]* ")


@attrs.frozen(kw_only=True)
class Passage:
    """A paragraph, an item of a list, a row of a table or a docstring, on one line.

    Attributes:
        file: Where it stands, relative to the repository.
        text: It, with single spaces.
    """

    file: str
    text: str

    def words(self) -> Iterator[tuple[int, int]]:
        """Return from where to where each word of a promise stands in it."""
        return (match.span() for match in _WORD.finditer(self.text))

    def sentence_at(self, position: int) -> str:
        """Return the sentence around a position."""
        start = max((end.end() for end in _END.finditer(self.text, 0, position)), default=0)
        end = _END.search(self.text, position)
        return self.text[start : end.start() if end else None].strip()


def passages() -> list[Passage]:
    """Return what has a word of a promise in it, of all places that are read."""
    found = [_passage(file, text) for file, text in (*_of_pages(), *_of_heads(), *_of_public_names())]
    return [each for each in dict.fromkeys(found) if any(each.words())]


def _passage(file: Path, text: str) -> Passage:
    return Passage(file=file.relative_to(ROOT).as_posix(), text=" ".join(text.split()))


def _of_pages() -> Iterator[tuple[Path, str]]:
    for page in (*(ROOT / name for name in _PAGES), *sorted((ROOT / "docs/how-to").glob("*.md"))):
        lines: list[str] = []
        for line in _FENCE.sub("\n", page.read_text()).splitlines():
            if (not line.strip() or _ITEM.match(line)) and lines:
                yield page, " ".join(lines)
                lines = []
            lines.append(line)
        yield page, " ".join(lines)


def _of_heads() -> Iterator[tuple[Path, str]]:
    for file in sorted((ROOT / "src/kdp").rglob("*.py")):
        yield file, ast.get_docstring(ast.parse(file.read_text())) or ""


def _of_public_names() -> Iterator[tuple[Path, str]]:
    for stub, root in _STUBS.items():
        yield from _of_exports(ROOT / stub, ROOT / root)
    for name in _DRA:
        file = ROOT / "src/kdp/dra" / name
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, _DEFINED) and not node.name.startswith("_"):
                yield from _of_definition(file, node)


def _of_exports(file: Path, root: Path, *, only: str = "") -> Iterator[tuple[Path, str]]:
    """Return the docstrings of what a package's file imports for others, or of one name of that."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            start = file.parents[node.level - 1] if node.level else root
            place = start.joinpath(*(node.module or "").split("."))
            for name in node.names:
                if only in ("", name.name):
                    yield from _of_name(place, name.name, root, file)


def _of_name(place: Path, name: str, root: Path, asked_by: Path) -> Iterator[tuple[Path, str]]:
    module = place / f"{name}.py"
    if module.is_file():
        yield module, ast.get_docstring(ast.parse(module.read_text())) or ""
    for file in (place.with_suffix(".py"), place / "__init__.pyi", place / "__init__.py"):
        if file.is_file() and file != asked_by:
            yield from _of_exports(file, root, only=name)
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, _DEFINED) and node.name == name:
                    yield from _of_definition(file, node)


def _of_definition(
    file: Path, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[tuple[Path, str]]:
    yield file, ast.get_docstring(node) or ""
    for member in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not member.name.startswith("_"):
            yield file, ast.get_docstring(member) or ""
        elif isinstance(member, ast.Expr) and isinstance(member.value, ast.Constant):  # the text below an attribute
            yield file, str(member.value.value)
