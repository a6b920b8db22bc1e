"""Guests themselves: what they see, what comes back, and that they end."""

from __future__ import annotations

import platform
import subprocess
import time
from pathlib import Path

import pytest

from .conftest import RunInGuest, RunTestsInGuest
from .guests.plain import PLAIN

HERE = Path(__file__)


def test_a_guest_sees_the_files_of_the_host_and_keeps_what_it_writes(run_in_guest: RunInGuest, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("the host's")
    script = f"""
        uname -r > /out/kernel
        cmp {HERE} {HERE.parent}/../hardware/{HERE.name} || exit 20
        echo "the guest's" > {mine}
        echo "$GREETING" > /out/greeting
        grep -c . /proc/modules > /out/modules
        exit 7"""

    outcome, out = run_in_guest(PLAIN, ["bash", "-c", script], environment={"GREETING": "it's me"})

    assert outcome.code == 7, outcome.said
    assert mine.read_text() == "the host's"
    assert (out / "greeting").read_text() == "it's me\n"
    assert int((out / "modules").read_text()) >= 5
    assert (out / "kernel").read_text().strip() != platform.release()
    assert "not loaded" not in outcome.said


def test_a_guest_that_hangs_is_killed_and_leaves_nothing(run_in_guest: RunInGuest) -> None:
    began = time.monotonic()

    outcome, out = run_in_guest(PLAIN, ["sleep", "1000"], limit=15)

    assert outcome.code is None
    assert "killed after 15 s" in outcome.said
    assert time.monotonic() - began < 60
    assert str(out) not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_a_guest_whose_kernel_ends_is_no_success(run_in_guest: RunInGuest) -> None:
    outcome, _ = run_in_guest(PLAIN, ["sh", "-c", "echo c > /proc/sysrq-trigger; sleep 100"], limit=60)

    assert outcome.code is None
    assert "sysrq triggered crash" in outcome.said


def test_tests_in_a_guest_report_here(run_tests_in_guest: RunTestsInGuest) -> None:
    out = run_tests_in_guest(PLAIN, "test_plain.py")
    assert (out / "said").read_text() == "plain"

    with pytest.raises(AssertionError, match="assert 'plain' == 'other'"):
        run_tests_in_guest(PLAIN, "test_plain.py", environment={"WANTED": "other"})
