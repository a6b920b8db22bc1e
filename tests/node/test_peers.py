"""The kit judges plugins in Go, and the page says what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .nodekit.tools import Missing, tool
from .peers.roster import foreign
from .peers.table import PAGE, Judgement, page, read


def test_a_go_plugin_passes_and_fails_where_it_should() -> None:
    try:
        program = tool("peer-reference")
    except Missing as missing:
        pytest.skip(str(missing))
    kdp = os.fspath(Path(sys.executable).with_name("kdp"))
    words = ["--only", "1,3,4,14,33,34,59", "--format", "json", "--", os.fspath(program), "-dir", "{device_plugins}"]
    done = subprocess.run([kdp, "conformance", *words], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    found = {check["id"]: check["status"] for check in json.loads(done.stdout)["checks"]}
    # It registers once for each kubelet, and under one name for ever: that is what 14 and 59 are about.
    assert found == dict.fromkeys((1, 3, 4, 33, 34), "passed") | dict.fromkeys((14, 59), "failed")


def test_the_page_is_what_the_data_says() -> None:
    assert PAGE.read_text() == page(list(read().values()))


def test_a_judgement_keeps_no_path_of_the_machine() -> None:
    checks = [
        {"id": 1, "status": "passed", "saw": ""},
        {"id": 2, "status": "failed", "saw": "it left /tmp/kdp-ab12/x\nstory"},
    ]
    found = Judgement.of(
        {"profile": "k137", "checks": checks}, name="x", version="", remark="", date="2026-01-01", seconds=1.0
    )
    assert (found.passed, found.failed) == ([1], {2: "it left …/x"})


@pytest.mark.parametrize(
    ("text", "mounted", "version"),
    [("a=./b --dir {device_plugins}", False, ""), ("a@v1=b '{\"x\": 1}'", True, "v1")],
)
def test_any_other_peer_is_described_in_a_word(text: str, mounted: bool, version: str) -> None:
    peer = foreign(text)
    assert (peer.name, peer.is_mounted, peer.version) == ("a", mounted, version)


@pytest.mark.parametrize("text", ["", "a", "a=", "=b"])
def test_what_describes_no_peer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be NAME=COMMAND"):
        foreign(text)
