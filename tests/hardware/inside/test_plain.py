"""Runs in a plain guest: what a test there says arrives outside."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def test_a_guest_runs_tests(figure: Callable[[str, float, str], None]) -> None:
    (Path("/out") / "said").write_text("plain")
    figure("guest is up after", float(Path("/proc/uptime").read_text().split()[0]), "s")
    assert os.environ["KDP_GUEST"] == os.environ.get("WANTED", "plain")
