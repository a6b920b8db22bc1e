from __future__ import annotations

import subprocess
import sys

import pytest

from .blocks import ROOT

pytestmark = pytest.mark.repository


def test_writing_the_reference_again_changes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/reference.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
