"""The commands below "To begin with" in ``kdp --help`` work with the README's plugin, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .blocks import ROOT, blocks_of
from .running import alone


def commands() -> list[str]:
    """Return the commands, but the one that serves until it is stopped."""
    told = subprocess.run([sys.executable, "-m", "kdp", "--help"], capture_output=True, text=True, check=True).stdout
    begin = told.partition("To begin with:\n")[2].partition("\n\n")[0]
    found = [re.sub(r"  +.*", "", line.strip()) for line in begin.splitlines() if re.match(r" +kdp ", line)]
    return [each for each in found if not each.startswith("kdp run ")]


@pytest.mark.pages
@pytest.mark.parametrize("command", commands())
def test_a_command_to_begin_with_failed(command: str, tmp_path: Path) -> None:
    """``kdp explain`` ended with "it has no policy"."""
    [plugin] = [each for each in blocks_of(ROOT / "README.md") if each.marks.get("file") == "widgets.py"]
    (tmp_path / "widgets.py").write_text(plugin.text)
    done = subprocess.run(
        [*alone(tmp_path), sys.executable, "-m", *command.split()],
        cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout
