"""README and tutorials as a newcomer follows them: in an empty environment with exactly what the page installs.

Of every other page that installs something, the first command after it is run in the same way.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.blocks import PAGES, Block, blocks_of, differences
from tests.docs.running import alone

from .conftest import ROOT

FOLLOWED = (
    "README.md",
    "docs/tutorial/first-plugin.md",
    "docs/tutorial/your-hardware.md",
    "docs/tutorial/dra-driver.md",
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a clone of this repository has."""
    made = tmp_path / "kdp"
    made.mkdir()
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    names = b"\0".join(name for name in files.split(b"\0") if name and (ROOT / os.fsdecode(name)).exists())
    tar = subprocess.run(
        ["tar", "--create", "--null", "--files-from=-"], cwd=ROOT, input=names, capture_output=True, check=True
    )
    subprocess.run(["tar", "--extract"], cwd=made, input=tar.stdout, check=True)
    return made


def script_of(blocks: list[Block]) -> tuple[str, list[tuple[str, int, str]]]:
    """Return what the reader types into one shell, and of each command its place, exit code, and shown output."""
    lines: list[str] = []
    commands: list[tuple[str, int, str]] = []
    for block in blocks:
        if "file" in block.marks:
            lines += [f"cat > {block.marks['file']} << 'THE END'", block.text.rstrip("\n"), "THE END"]
            continue
        typed = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
        for position, each in enumerate(typed):
            command, _, shown = each.partition("\n")
            is_last = position == len(typed) - 1
            commands.append((f"{block.where}: {command}", int(block.marks.get("exit", "0")) if is_last else 0, shown))
            lines += [command, "printf '\\0%s\\0' $?"]
    return "\n".join(lines) + "\n", commands


def is_followed(block: Block) -> bool:
    """Whether a newcomer with nothing but a clone can do it. `make demo` and clusters have tests of their own."""
    if "in" in block.marks:
        return False
    if block.category == "executed":
        return block.language == "console" or "file" in block.marks
    return "file" in block.marks or block.marks.get("level", "").startswith("packaging")


def installs(block: Block) -> bool:
    """Whether a block installs kdp from the clone."""
    return block.marks.get("level", "").startswith("packaging") and "pip install" in block.text


@pytest.mark.parametrize("page", FOLLOWED)
def test_a_page_needs_nothing_but_what_it_installs(page: str, clone: Path, tmp_path: Path) -> None:
    follow([block for block in blocks_of(ROOT / page) if is_followed(block)], clone, tmp_path)


OTHERS = [page for page in PAGES if any(map(installs, blocks_of(page))) and str(page.relative_to(ROOT)) not in FOLLOWED]


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in OTHERS])
def test_the_first_command_of_a_page_runs_after_its_installation(page: Path, clone: Path, tmp_path: Path) -> None:
    """deploy.md began with a command of a package that no page installed."""
    blocks = blocks_of(page)
    begin = next(position for position, block in enumerate(blocks) if installs(block))
    first = next(
        position
        for position, block in enumerate(blocks)
        if block.category == "executed" and block.language == "console"
    )
    assert begin < first
    wanted = [blocks[begin], *(block for block in blocks[:first] if "file" in block.marks), blocks[first]]
    follow(wanted, clone, tmp_path, before="python3 -m venv ../venv && . ../venv/bin/activate\n")


def follow(blocks: list[Block], clone: Path, tmp_path: Path, before: str = "") -> None:
    """Type blocks into a shell of a machine that has nothing but Python and the clone, and compare what it prints."""
    home, programs = tmp_path / "home", tmp_path / "programs"
    home.mkdir()
    programs.mkdir()
    python = programs / "python3"
    python.write_text(f'#!/bin/sh\nexec {getattr(sys, "_base_executable", sys.executable)} "$@"\n')
    python.chmod(0o755)
    text, commands = script_of(blocks)
    outside = {"HOME": str(home), "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin", "COLUMNS": "100", "NO_COLOR": "1"}
    outside |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "TMPDIR"))}
    cache = subprocess.run(
        [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True
    ).stdout.strip()

    done = subprocess.run(
        [*alone(tmp_path), "bash"],
        input=before + text, cwd=clone, env=outside | {"PIP_CACHE_DIR": cache},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
    )  # fmt: skip

    printed = done.stdout.split("\0")
    assert len(printed) == 2 * len(commands) + 1, done.stdout
    for (where, expected, shown), output, code in zip(commands, printed[::2], printed[1::2], strict=False):
        assert int(code) == expected, f"{where} ended with exit code {code}:\n{output}"
        wrong = differences(shown, output) if shown.strip() else []
        assert not wrong, "\n".join([f"{where} prints something else:", *wrong, "", output])
