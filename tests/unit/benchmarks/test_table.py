"""The table says what holds; each group of rows can be made."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from benchmarks.__main__ import GROUPS
from benchmarks.processes import REPOSITORY, Process, descriptors, memory, switches
from benchmarks.setting import Setting
from benchmarks.table import Row, at_most, quantile, show


def test_a_row_is_judged() -> None:
    assert at_most("a", 2.0, 2, "ms").verdict == "holds"
    assert at_most("a", 2.1, 2, "ms") == Row("a", "2.1 ms", "<= 2 ms", False)
    assert at_most("a", 2.1, 2, "ms").verdict == "MISSED"
    assert Row("a", "1").verdict == ""


def test_the_table_is_markdown() -> None:
    text = show([at_most("start", 1.25, 1.9, "x bare", digits=2, note="5 rounds"), Row("b", "1")])
    assert text.splitlines() == [
        "| what  | figure      | must          | verdict | note |",
        "|-------|-------------|---------------|---------|----- |",
        "| start | 1.25 x bare | <= 1.9 x bare | holds   | 5 rounds |",
        "| b     | 1           |               |         | |",
    ]


def test_quantile() -> None:
    values = [float(number) for number in range(100)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([3.0], 0.99)) == (50, 99, 3)


def test_the_seed_decides_what_is_random() -> None:
    first, again = (Setting(quick=True, seed=7).random("x").random() for _ in range(2))
    assert first == again != Setting(quick=True, seed=8).random("x").random()


@pytest.mark.parametrize("group", GROUPS)
def test_groups_can_be_loaded(group: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{group}").rows)


def test_processes_are_watched_and_ended() -> None:
    program = 'import time; print(\'{"event": "up", "n": 1}\', flush=True); time.sleep(60)'
    with Process([sys.executable, "-c", program]) as process:
        assert process.event("up", n=1) == {"event": "up", "n": 1}
        assert memory(process.pid) > 1
        assert descriptors(process.pid) >= 3
        assert process.pid in switches(process.pid)
        with pytest.raises(TimeoutError):
            process.event("down", timeout=0.05)
        assert process.is_alive
    assert not process.is_alive


@pytest.mark.slow
def test_one_group_runs_as_a_command() -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "stop"]
    found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert "| stop: SIGTERM -> exit 0, open stream" in found.stdout, found.stderr
    assert found.returncode in (0, 1)  # figures are judged by who reads them, not here
