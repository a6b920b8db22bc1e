"""``kdp conformance --mode dra``: a driver's program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kdp.command.app import kdp

KDP = Path(sys.executable).with_name("kdp")


@pytest.mark.slow
def test_a_program_is_judged() -> None:
    ids = [1, 12, 40]
    options = ["--mode", "dra", "--only", ",".join(map(str, ids)), "--format", "json"]
    told = subprocess.run(
        [KDP, "conformance", *options, "--", KDP, "run", "minimal"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    checks = {each["id"]: each for each in json.loads(told.stdout)["checks"]}
    assert [checks[id]["status"] for id in ids] == ["passed", "passed", "not_applicable"]
    assert "the lever 'fail' was not given" in checks[40]["saw"]


@pytest.mark.parametrize(
    ("mode", "option", "why"),
    [
        ("dra", ["--private-mount"], "the kit passes its directories to a DRA driver"),
        ("dra", ["--deadline", "30"], "a deadline of its own for each check"),
        ("device-plugin", ["--previous", "true"], "use --mode dra"),
    ],
)
def test_an_option_that_a_mode_has_no_use_for_is_refused(mode: str, option: list[str], why: str) -> None:
    told = CliRunner().invoke(kdp, ["conformance", "--mode", mode, *option, "--", "true"])
    assert told.exit_code == 2
    assert f"{option[0]} is not for --mode {mode}: " in told.stderr
    assert why in told.stderr
