"""The pytest marker, as a vendor uses it: in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BACKEND = """
import kdp, pytest

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    def discover(self):
        return kdp.Device.counted("w", 2)

class Broken(Widgets):
    def allocate(self, devices):
        return kdp.ContainerEdits(env={"MINE": "yes"}, mounts=[kdp.Mount("/nowhere/at/all", "/mnt")])
"""


def outcome(directory: Path, test: str) -> str:
    (directory / "test_widgets.py").write_text(BACKEND + test)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *("--strict-markers", "-c", "/dev/null", "--rootdir", str(directory), "-p", "no:hypothesispytest"),
            str(directory),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_each_check_is_a_test_and_a_failed_one_says_what_cures_it(tmp_path: Path) -> None:
    said = outcome(
        tmp_path,
        """
@pytest.mark.conformance(Widgets, only=[4, 33, 65])
def test_widgets(conformance_check):
    assert conformance_check.status == "passed"

@pytest.mark.conformance(Broken, only=[33])
def test_broken(conformance_check):
    pass

@pytest.fixture
def conformance_backend(tmp_path):
    return lambda: Widgets()

@pytest.mark.conformance(only=[4, 33, 34])
def test_all_at_once(conformance):
    conformance.raise_if_failed()
    assert conformance.summary == {"passed": 3, "failed": 0, "not_applicable": 0}
""",
    )
    assert "3 passed, 1 skipped" in said, said
    assert "1 error" in said or "1 failed" in said, said
    assert "test_widgets[33-Allocate-of-one-device-gets-a-valid-reply]" in said
    assert "check 65 does not apply" in said
    assert "check 33, Allocate of one device gets a valid reply" in said
    assert "/nowhere/at/all" in said
    assert "cure:" in said


def test_a_check_that_there_is_not_passed_silently(tmp_path: Path) -> None:
    """The test was skipped, and the marker's mistake was not told."""
    said = outcome(
        tmp_path,
        """
@pytest.mark.conformance(Widgets, only=[76])
def test_widgets(conformance_check):
    pass
""",
    )
    assert "test_widgets: the marker 'conformance': there is no check 76; the ids are 1 to 75" in said, said
    assert "Traceback" not in said
    assert "1 error" in said
