"""``kdp status``: what it shows of an answer. Plugins answer it in tests/integration/daemon/test_status.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.one_answer import answering

from kdp.command.app import kdp

ANSWER: dict[str, Any] = {
    "kdp": "0.1.0",
    "pid": 7,
    "mode": "device-plugin",
    "node": "n1",
    "started": "2026-01-01T00:00:00+00:00",
    "ready": False,
    "reason": None,
    "configuration": {"state": "rejected", "reason": "unknown key 'x'", "since": "2026-01-01T00:00:03+00:00"},
    "absent": ["B: no card"],
    "backends": [{"class": "W", "reason": "driver not loaded"}],
    "resources": [
        {
            "name": "example.com/w",
            "state": "waiting",
            "reason": "there is no kubelet.sock",
            "devices": 2,
            "healthy": 1,
            "rival": "process 9 serves this resource as well",
            "kubelet": None,
            "listed": [
                {
                    "id": "w0",
                    "health": "Healthy",
                    "state": "suspect",
                    "reason": None,
                    "since": "2026-01-01T00:00:01+00:00",
                    "numa_nodes": [0, 1],
                    "unit": "w0",
                    "held_by": "default/p (main)",
                },
                {
                    "id": "w1",
                    "health": "Unhealthy",
                    "state": "unhealthy",
                    "reason": "fan\x1b[31m failed",
                    "since": "2026-01-01T00:00:02+00:00",
                    "numa_nodes": [],
                    "unit": "w1",
                    "held_by": None,
                },
            ],
        }
    ],
}

TABLE = """\
kdp 0.1.0, process 7 on n1, device-plugin since 2026-01-01T00:00:00+00:00: not ready
  the configuration was refused at 2026-01-01T00:00:03+00:00, an earlier one is used: unknown key 'x'
  B: no card
  W: driver not loaded

example.com/w: waiting: there is no kubelet.sock, 2 devices, 1 healthy
  process 9 serves this resource as well
ID  HEALTH     STATE    SINCE                      HELD BY           NUMA  REASON
w0  Healthy    suspect  2026-01-01T00:00:01+00:00  default/p (main)  0,1
w1  Unhealthy           2026-01-01T00:00:02+00:00                          fan\\x1b[31m failed
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(kdp, ["status", *arguments], env={"KDP_SOCKET": ""})


def answered(path: Path, status: int, body: str, *arguments: str) -> Result:
    with answering(path, f"HTTP/1.1 {status} X\r\nKdp-Protocol: 1\r\n\r\n{body}".encode()):
        return invoke("--socket", str(path), *arguments)


def test_people_get_a_table(tmp_path: Path) -> None:
    result = answered(tmp_path / "a.sock", 200, json.dumps(ANSWER))
    assert (result.exit_code, result.stdout) == (1, TABLE)


def test_programs_get_the_document(tmp_path: Path) -> None:
    result = answered(tmp_path / "a.sock", 200, json.dumps({**ANSWER, "ready": True}), "--format", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {**ANSWER, "ready": True}


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, "here are /livez and /readyz\n", "here are /livez and /readyz\n"),
        (200, '{"ready": true, "resources": 7}', "its answer is no status"),
    ],
)
def test_an_odd_answer_is_a_sentence(tmp_path: Path, status: int, body: str, said: str) -> None:
    result = answered(tmp_path / "a.sock", status, body)
    assert result.exit_code == 1
    assert said in result.stdout
    assert "Traceback" not in result.output


def test_without_a_plugin_it_says_so(tmp_path: Path) -> None:
    result = invoke("--state-dir", str(tmp_path))
    assert result.exit_code == 1
    assert result.stdout == (
        f"no plugin has a socket in {tmp_path}; is it running, with this state directory? If it has another socket, "
        "give --socket PATH\n"
    )


def test_what_only_the_json_had_was_missing_in_the_text(tmp_path: Path) -> None:
    """The kubelet, a driver's claims and slices, dropped fields, withheld devices, and that events are off."""
    slices = {
        "generation": 3,
        "count": 2,
        "problem": "403 Forbidden",
        "withheld": {"w1": "DRAPartitionableDevices"},
        "dropped": [{"path": "spec.devices[0].taints", "gate": "DRADeviceTaints"}],
    }
    claims = [{"name": "default/c", "uid": "u", "devices": ["w0"], "is_prepared": False}]
    claims.append({"name": "default/d", "uid": "v", "devices": ["w1"], "is_prepared": False, "is_over": True})
    driver = {**ANSWER["resources"][0], "state": "awaiting stream", "slices": slices, "claims": claims}
    kubelet = {"state": "listening", "since": "2026-01-01T00:00:09+00:00", "restarts": 2}
    answer = {**ANSWER, "kubelet": kubelet, "resources": [driver], "events": None}
    text = answered(tmp_path / "a.sock", 200, json.dumps(answer)).stdout
    for line in (
        "  kubelet: listening since 2026-01-01T00:00:09+00:00, 2 restarts seen",
        "  slices: 2 published, generation 3",
        "  slices: 403 Forbidden",
        "  not published: w1, because the API server has the feature gate DRAPartitionableDevices off",
        "  dropped by the API server: spec.devices[0].taints; its feature gate DRADeviceTaints is off",
        "  claim default/c: w0, not prepared yet",
        "  claim default/d: w1, ended, but not released yet",
        "events: not kept; start the plugin with --status-page on, or set KDP_STATUS_PAGE=on",
    ):
        assert line in text.splitlines()
    assert "awaiting stream (registered, the kubelet has not asked for the devices yet)" in text


def test_one_restart_is_one(tmp_path: Path) -> None:
    answer = {**ANSWER, "kubelet": {"state": "listening", "since": None, "restarts": 1}}
    text = answered(tmp_path / "a.sock", 200, json.dumps(answer)).stdout
    assert "  kubelet: listening, 1 restart seen" in text.splitlines()


def test_only_ten_events_were_shown(tmp_path: Path) -> None:
    event = {"at": "2026-01-01T00:00:00+00:00", "kind": "fault", "subject": "s", "devices": [], "more": 0, "count": 1}
    events = [{**event, "text": f"number {n}"} for n in range(60)]
    text = answered(tmp_path / "a.sock", 200, json.dumps({**ANSWER, "events": events})).stdout
    assert sum("number " in line for line in text.splitlines()) == 50


def test_there_was_no_short_form_of_format(tmp_path: Path) -> None:
    result = answered(tmp_path / "a.sock", 200, json.dumps(ANSWER), "-o", "json")
    assert json.loads(result.stdout) == ANSWER


@pytest.mark.parametrize(("arguments", "seconds"), [(["--watch"], 2.0), (["--watch", "5"], 5.0)])
def test_watch_needed_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], seconds: float
) -> None:
    pauses: list[float] = []

    def pause(given: float) -> None:
        pauses.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr("kdp.admin.commands.status.time.sleep", pause)
    answered(tmp_path / "a.sock", 200, json.dumps(ANSWER), *arguments)
    assert pauses == [seconds]
