"""The dashboard that is committed is what its script writes, and it leaves no series out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kdp.operations.series import SERIES

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.repository


def expressions(panels: list[Any]) -> Iterator[str]:
    for panel in panels:
        yield from (target["expr"] for target in panel.get("targets", ()))
        yield from expressions(panel.get("panels", []))


def test_writing_it_again_changes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/dashboard.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_dashboard_that_is_outdated_is_noticed(tmp_path: Path) -> None:
    """`--check` reads the file that is beside the script's folder."""
    script = tmp_path / "scripts/dashboard.py"
    outdated = tmp_path / "deploy/grafana/kdp.json"
    for path, source in ((script, "scripts/dashboard.py"), (outdated, "deploy/grafana/kdp.json")):
        path.parent.mkdir(parents=True)
        path.write_text((ROOT / source).read_text())
    outdated.write_text(outdated.read_text().replace("kdp_registered", "kdp_registerd", 1))
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == "deploy/grafana/kdp.json is not what scripts/dashboard.py writes: run `make dashboard`\n"
    assert "kdp_registerd" in outdated.read_text()


def test_each_series_is_in_a_panel_and_each_panel_has_series_that_there_are() -> None:
    document = json.loads((ROOT / "deploy/grafana/kdp.json").read_text())
    used = {name for each in expressions(document["panels"]) for name in re.findall(r"kdp_[a-z_]+", each)}
    known = {each.name + ("_bucket" if each.kind == "histogram" else "") for each in SERIES}
    assert used == known
