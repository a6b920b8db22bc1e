"""``kdp status``: what it shows of an answer. Plugins answer it in tests/integration/daemon/test_status.py."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.one_answer import answering

from kdp.admin.commands.status import page_address
from kdp.command.app import kdp
from kdp.daemon.parsers import Address
from kdp.errors import ConfigurationError

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
    """The kubelet, a driver's claims and slices, dropped fields, withheld devices."""
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


def test_a_page_shows_all_plugins_of_the_node_and_text_one(tmp_path: Path) -> None:
    state, kubelet = tmp_path / "state", tmp_path / "kubelet"
    where = ["--state-dir", str(state)]
    answer = b"HTTP/1.1 200 X\r\nKdp-Protocol: 1\r\n\r\n" + json.dumps({**ANSWER, "ready": True}).encode()
    with contextlib.ExitStack() as plugins:
        for name in ("a", "b"):
            plugins.enter_context(answering(state / f"{name}.sock", answer, asked=4))
        result = CliRunner().invoke(
            kdp, ["status", *where, "--format", "html"], env={"KDP_SOCKET": "", "KDP_KUBELET_ROOT": str(kubelet)}
        )
        refused = CliRunner().invoke(kdp, ["status", *where], env={"KDP_SOCKET": "", "KDP_KUBELET_ROOT": str(kubelet)})
    assert (result.exit_code, "<title>2 of 2 ready: devices of 2 plugins</title>" in result.stdout) == (0, True)
    assert (refused.exit_code, "several plugins of this node have a socket" in refused.stderr) == (2, True)


def test_a_page_of_a_plugin_that_does_not_answer_says_why(tmp_path: Path) -> None:
    result = invoke("--socket", str(tmp_path / "none.sock"), "--format", "html")
    assert result.exit_code == 1
    assert f"{tmp_path}/none.sock: No such file or directory" in result.stdout


def test_saved_documents_of_several_nodes_are_one_page(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.json" for name in ("n1", "n2")]
    for file in files:
        file.write_text(json.dumps({**ANSWER, "node": file.stem, "ready": True}))
        os.utime(file, (0, 1772625600))
    names = [str(file) for file in files]
    result = invoke(*names, "--format", "html")
    assert (result.exit_code, "<title>2 of 2 ready: devices of 2 plugins</title>" in result.stdout) == (0, True)
    assert "2026-03-04 12:00:00 UTC" in result.stdout
    text = invoke(*names)
    assert text.exit_code == 0
    assert text.stdout.startswith(f"{files[0]}, as of 2026-03-04 12:00:00 UTC\nkdp 0.1.0, process 7 on n1")
    assert f"{files[1]}, as of" in text.stdout
    [one, _] = invoke(*names, "--format", "json").stdout.split("}\n{")
    assert json.loads(f"{one}}}")["node"] == "n1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read (No such file or directory); name a file that can"),
        ("{", "is no status of a plugin ("),
        ('{"ready": true}', "is no status of a plugin (it has no key 'resources'); expected what kdp status"),
    ],
)
def test_a_file_without_a_status_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "n1.json"
    if text is not None:
        file.write_text(text)
    result = invoke(str(file), "--format", "html")
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize(
    ("arguments", "pair"),
    [
        (["n1.json", "--socket", "/a.sock"], "FILE and --socket"),
        (["n1.json", "--state-dir", "/s"], "FILE and --state-dir"),
        (["n1.json", "--watch", "2"], "FILE and --watch"),
        (["n1.json", "--serve", ":8080"], "FILE and --serve"),
        (["--serve", ":8080", "--watch", "2"], "--serve and --watch"),
        (["--serve", ":8080", "--format", "json"], "--serve and --format"),
        (["--format", "html", "--watch", "2"], "--format html and --watch"),
    ],
)
def test_an_option_without_effect_is_refused(arguments: list[str], pair: str) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, f"{pair} exclude each other; give one of them" in result.stderr) == (2, True)


def test_a_page_is_served_on_this_machine_unless_an_address_is_named() -> None:
    assert page_address(":8080") == Address("127.0.0.1", 8080)
    assert page_address("192.0.2.7:80") == Address("192.0.2.7", 80)
    with pytest.raises(ConfigurationError, match=r"--serve 'x': must be ADDRESS:PORT or :PORT; for example"):
        page_address("x")


def test_an_address_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = invoke("--socket", str(tmp_path / "a.sock"), "--serve", f":{port}")
    assert (result.exit_code, "cannot listen there (Address already in use)" in result.stderr) == (2, True)
