"""README and tutorials as a newcomer follows them: in an empty environment with exactly what the page installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.blocks import Block, blocks_of, differences
from tests.docs.running import alone

from .conftest import ROOT

PAGES = ("README.md", "docs/tutorial/first-plugin.md", "docs/tutorial/your-hardware.md", "docs/tutorial/dra-driver.md")


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


@pytest.mark.parametrize("page", PAGES)
def test_a_page_needs_nothing_but_what_it_installs(page: str, clone: Path, tmp_path: Path) -> None:
    home, programs = tmp_path / "home", tmp_path / "programs"
    home.mkdir()
    programs.mkdir()
    python = programs / "python3"
    python.write_text(f'#!/bin/sh\nexec {getattr(sys, "_base_executable", sys.executable)} "$@"\n')
    python.chmod(0o755)
    text, commands = script_of([block for block in blocks_of(ROOT / page) if is_followed(block)])
    outside = {"HOME": str(home), "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin", "COLUMNS": "100", "NO_COLOR": "1"}
    outside |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "TMPDIR"))}
    cache = subprocess.run(
        [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True
    ).stdout.strip()

    done = subprocess.run(
        [*alone(tmp_path), "bash"],
        input=text, cwd=clone, env=outside | {"PIP_CACHE_DIR": cache}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=600, check=False,
    )  # fmt: skip

    printed = done.stdout.split("\0")
    assert len(printed) == 2 * len(commands) + 1, done.stdout
    for (where, expected, shown), output, code in zip(commands, printed[::2], printed[1::2], strict=False):
        assert int(code) == expected, f"{where} ended with exit code {code}:\n{output}"
        wrong = differences(shown, output) if shown.strip() else []
        assert not wrong, "\n".join([f"{where} prints something else:", *wrong, "", output])
