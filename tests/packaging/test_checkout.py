"""A checkout that is installed as a stranger does it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

from .conftest import ROOT


def installed(*arguments: str) -> subprocess.CompletedProcess[str]:
    options = ("--dry-run", "--quiet", "--ignore-installed", "--no-build-isolation", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", *options, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_the_line_for_a_checkout_works_although_both_distributions_need_each_other() -> None:
    [line] = re.findall(r"^\$ pip install (.* \./testkit)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    done = installed(*shlex.split(line))
    assert done.returncode == 0, done.stderr
