"""The kit judges plugins in Go, and the page says what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .nodekit.tools import Missing, tool
from .peers.evidence import EVIDENCE
from .peers.roster import foreign
from .peers.table import PAGE, Judgement, in_order, page, read


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
    assert PAGE.read_text() == page(in_order(read()))


REPORT = """{"profile": "k137", "summary": {"passed": 1, "failed": 1, "not_applicable": 2}, "checks": [
    {"id": 1, "status": "passed", "saw": ""}, {"id": 14, "status": "failed", "saw": "it left /tmp/kdp-ab-12/x\\nstory"},
    {"id": 6, "status": "not_applicable", "saw": "no lever"}, {"id": 7, "status": "not_applicable", "saw": "no lever"}
]}"""
JUDGED = Judgement.of(REPORT, name="x", version="v1", remark="", date="2026-01-01", seconds=1.0)


def test_a_judgement_keeps_no_path_of_the_machine() -> None:
    assert JUDGED.of_status("failed") == {14: "it left …/x"}
    assert JUDGED.report["checks"][1]["saw"] == "it left …/x\nstory"


def test_the_page_did_not_say_why_a_check_is_not_applicable() -> None:
    text = page([JUDGED])
    assert "| [x](peers/x.json) | v1 | 1 | 1 | 2 | 1 s | 2026-01-01, k137 |  |" in text
    assert "| 6 | a device that fails is listed Unhealthy | n/a |" in text
    assert "### Not applicable to x\n\n- 6, 7: no lever\n" in text


def test_a_check_that_fails_a_plugin_cites_the_kubelets_source() -> None:
    assert f"- 14: {EVIDENCE[14]}" in page([JUDGED])
    failed = {id for judgement in read().values() for id in judgement.of_status("failed")}
    assert failed <= EVIDENCE.keys()
    for text in EVIDENCE.values():
        assert "https://github.com/kubernetes/kubernetes/blob/v1." in text
        assert "](kubelet.md#" in text


def test_a_check_without_evidence_fails_no_plugin_on_the_page() -> None:
    report = REPORT.replace('"id": 14', '"id": 5')
    with pytest.raises(KeyError):
        page([Judgement.of(report, name="x", version="", remark="", date="2026-01-01", seconds=1.0)])


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
