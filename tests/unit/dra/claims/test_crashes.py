"""Scenario 26: the driver is killed at each step of Prepare and of Unprepare."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
EMPTY = {"error": "", "devices": [], "names": [], "is_complete": False, "files": [], "hardware": [], "metadata": []}


@pytest.mark.slow
def test_a_driver_killed_at_any_step_is_made_good_by_the_next(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.dra.claims.crashes", str(tmp_path / "node")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    lives = [json.loads(line) for line in done.stdout.splitlines()]
    steps = Counter((life["crashed"], life["step"]) for life in lives if life["kind"] == "hooks")
    assert steps["prepare", "after allocate"] == 2
    assert steps["prepare", "before rename"] >= 3, "started, the spec, complete"
    assert steps["unprepare", "after released"] == 2
    plain = Counter((life["crashed"], life["step"]) for life in lives if life["kind"] == "plain")
    assert plain["prepare", "before rename"] == 2, "the spec, complete"
    described = Counter((life["crashed"], life["step"]) for life in lives if life["kind"] == "metadata")
    assert described["prepare", "before rename"] == steps["prepare", "before rename"] + 2, "each request's file"
    answers: dict[str, set[str]] = {"hooks": set(), "plain": set(), "metadata": set()}
    for life in lives:
        if life["crashed"] == "unprepare":
            assert life["again"] == EMPTY, life
        prepared = life["prepared"]
        assert prepared["error"] == "", life
        assert [name for device in prepared["devices"] for name in device[2]] == prepared["names"], life
        assert prepared["is_complete"], life
        assert prepared["hardware"] == ([] if life["kind"] == "plain" else ["a", "b"]), life
        assert prepared["metadata"] == (["a", "b"] if life["kind"] == "metadata" else []), life
        assert life["undone"] == EMPTY, life
        answers[life["kind"]].add(json.dumps(prepared["devices"]))
    assert [len(each) for each in answers.values()] == [1, 1, 1], "always the same answer"
