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


def test_a_page_that_lost_the_marks_of_a_part_is_refused() -> None:
    script = ROOT / "scripts/reference.py"
    code = f"import runpy; runpy.run_path({str(script)!r})['with_part']('a page', 'layers', 'drawn')"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == "a page has lost the marks of its part 'layers'\n"
