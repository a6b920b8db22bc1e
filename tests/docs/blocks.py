"""The code blocks of README and docs, and what is done with each.

Every fenced block has a language, and belongs to exactly one category:

========== =============================================================================================================
executed   ``python`` is run, with one namespace a page; ``console`` is run in bash, in a directory of the page's own,
           and what it prints is compared with what the page shows; ``yaml`` is loaded. One with
           ``<!-- file: NAME -->`` in front of it is written to that directory first, for the blocks that follow.
elsewhere  ``<!-- level: NAME: REASON -->`` in front of it: another level of the tests runs it, see `LEVELS`.
drawing    ``mermaid`` and ``text``: nothing that could be run.
========== =============================================================================================================

More marks: ``<!-- in: repository -->`` runs at the repository's root; ``<!-- exit: N -->``: the exit code of the last
command; ``<!-- output: devices -->``: what is printed depends on the machine's devices, so only its shape is compared.

In the output that a page shows, a line ``...`` stands for any lines, and ``...`` in a line for any text. Figures
(times, process numbers, temporary directories) are those of the run that was pasted; they are not compared.
"""

from __future__ import annotations

import re
from pathlib import Path

import attrs

__all__ = ["LEVELS", "PAGES", "ROOT", "Block", "blocks_of", "differences"]

ROOT = Path(__file__).parents[2]

PAGES = [
    *(ROOT / "README.md", ROOT / "examples/rdma/README.md"),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts),
]

LEVELS = {
    "ci": "`.ci/run` runs these make targets itself",
    "packaging": "tests/packaging installs the built distribution into an empty environment",
    "cluster": "needs a Kubernetes cluster and an image registry",
}
"""Levels of the tests above this one, with the reason why a block cannot be run here."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (\w+): (.+?) -->")
_MARKS = {"file", "level", "in", "exit", "output"}


@attrs.frozen(kw_only=True)
class Block:
    """A fenced block.

    Attributes:
        page: Its page, relative to the repository.
        line: Its first line's number.
        language: What stands behind the fence.
        text: What is in it.
        marks: The comments in front of it.
    """

    page: str
    line: int
    language: str
    text: str
    marks: dict[str, str]

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def category(self) -> str | None:
        """What is done with it; None: nobody knows."""
        if set(self.marks) - _MARKS:
            return None
        if "level" in self.marks:
            level, _, reason = self.marks["level"].partition(": ")
            return "elsewhere" if level in LEVELS and reason else None
        if self.language in ("text", "mermaid"):
            return "drawing"
        return "executed" if self.language in ("python", "console", "yaml") else None


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in their order."""
    text = page.read_text()
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(text):
        before = text[end : match.start()].rstrip().split("\n\n")[-1].splitlines()
        marks: dict[str, str] = {}
        while before and (mark := _MARK.fullmatch(before.pop().strip())):
            marks[mark[1]] = mark[2]
        indent = match["indent"]
        lines = [line.removeprefix(indent) for line in match["body"].splitlines()]
        found.append(
            Block(
                page=page.relative_to(ROOT).as_posix(),
                line=text.count("\n", 0, match.start()) + 1,
                language=match["language"],
                text="\n".join(lines) + "\n",
                marks=marks,
            )
        )
        end = match.end()
    return found


_FIGURES = [
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "#"),
    (re.compile(r"/tmp/[\w.-]+"), "/tmp/#"),
    (re.compile(r"\d+(\.\d+)?( ?m?s\b)"), r"#\2"),
    (re.compile(r"(?<=#s) \(\d+:\d\d:\d\d\)"), ""),  # pytest says a minute and more in both ways
    (re.compile(r"process \d+"), "process #"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:#"),
    (re.compile(r"(?<=is )\S+(?=; its container)"), "#"),  # which device of several is the kubelet's choice
    (re.compile(r"\s{2,}"), "  "),
]

_OF_DEVICES = [
    (re.compile(r"/dev/\S+"), "/dev/#"),
    (re.compile(r"example\.com/\w+"), "example.com/#"),
    (re.compile(r"(?<=gets )\S+(?=; admitted)"), "#"),
    (re.compile(r"(?<=gets )\w+=\S+"), "#"),
    (re.compile(r"(?<=plugged in: ).*(?=, whose)"), "#"),
    (re.compile(r"(?<=opened: ).*"), "#"),
    (re.compile(r"all \d+ resources"), "all # resources"),
    (re.compile(r"(\d+\.\d( {2})?)+$"), "#"),
]


def _general(text: str, *, of_devices: bool) -> list[str]:
    lines: list[str] = []
    for line in text.rstrip().splitlines():
        general = line.strip()
        for pattern, stand_in in (*_FIGURES, *(_OF_DEVICES if of_devices else ())):
            general = pattern.sub(stand_in, general)
        lines.append(general)
    return lines


def differences(shown: str, printed: str, *, of_devices: bool = False) -> list[str]:
    """Return what a page shows and the command did not print, as lines; none: they agree.

    Args:
        shown: On the page.
        printed: By the command.
        of_devices: Whether it depends on the machine's devices: then each line that is shown must have been printed
            with other devices in it, tables of devices apart.
    """
    expected, actual = (_general(text, of_devices=of_devices) for text in (shown, printed))
    if of_devices:
        table = re.compile(r"(ID  |\S+  (Healthy|Unhealthy)|example\.com/#: )")
        return [line for line in expected if line not in ("", "...") and line not in actual and not table.match(line)]
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n" for line in expected
    )
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in actual)):
        return []
    return [f"shown:   {line}" for line in expected] + [f"printed: {line}" for line in actual]
