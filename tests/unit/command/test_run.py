"""What ``kdp run`` refuses before it serves anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, because it gives the process's stdout to the backend."""
    rest = {name: value for name, value in os.environ.items() if name != "KDP_LOG_FORMAT"}
    command = [sys.executable, "-m", "kdp", "run", *arguments]
    return subprocess.run(command, env={**rest, **environ}, capture_output=True, text=True, check=False, timeout=60)


def test_strict_config_without_a_file_was_taken_silently() -> None:
    result = run("a:B", "--strict-config")
    assert result.returncode == 2
    assert result.stderr == (
        "kdp run: --strict-config: there is no configuration file, so it has no effect; name one with --config FILE, "
        "or leave it out\n"
    )


@pytest.mark.parametrize("way", ["flag=", "file"])
def test_what_click_refuses_was_no_line_of_a_json_log(tmp_path: Path, way: str) -> None:
    flags = {"flag": ["--log-format", "json"], "flag=": ["--log-format=json"], "file": ["--config"]}.get(way, [])
    if way == "file":
        (tmp_path / "a.yaml").write_text("log-format: json")
        flags += [str(tmp_path / "a.yaml")]
    result = run("a:B", *flags, "--pol-interval", "5", **({"KDP_LOG_FORMAT": "json"} if way == "variable" else {}))
    assert result.returncode == 2
    line = json.loads(result.stderr)
    assert (line["level"], line["logger"]) == ("critical", "kdp")
    assert "--pol-interval" in line["msg"]
