"""``kdp conformance --mode dra``: a driver's program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

KDP = Path(sys.executable).with_name("kdp")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([KDP, "conformance", *arguments], check=False, capture_output=True, text=True, timeout=120)


def test_a_program_is_judged() -> None:
    ids = [1, 12, 40]
    told = run("--mode", "dra", "--only", ",".join(map(str, ids)), "--output", "json", "--", str(KDP), "run", "minimal")
    assert told.returncode == 0, told.stdout + told.stderr
    checks = {each["id"]: each for each in json.loads(told.stdout)["checks"]}
    assert [checks[id]["status"] for id in ids] == ["passed", "passed", "not_applicable"]
    assert "the lever 'fail' was not given" in checks[40]["saw"]


def test_a_private_mount_is_refused() -> None:
    told = run("--mode", "dra", "--private-mount", "--", "true")
    assert told.returncode == 2
    assert "--private-mount: a DRA driver is told its directories" in told.stderr
