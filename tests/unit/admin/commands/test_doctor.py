"""``kdp doctor``: its output and its exit codes. The questions are tested in tests/unit/admin/doctor."""

from __future__ import annotations

import gzip
import json
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kdp import __version__
from kdp.admin.commands import doctor
from kdp.admin.doctor.answers import Answer, Question, failed, not_known, ok, warning
from kdp.command.app import kdp
from kdp_testkit.dra.server import write_kubeconfig

WIDGETS = """
import kdp

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    def discover(self):
        return []

    def needs(self):
        return kdp.Needs(opened_nodes=["/dev/null"])

class Broken(Widgets):
    def needs(self):
        raise OSError("no\\x1b[31m")
"""


def kubelet_in(tmp_path: Path) -> list[str]:
    """Return the options that name the directories of a kubelet that is not there."""
    return [f"--kubelet-root={tmp_path}/k", f"--device-plugin-dir={tmp_path}/k/device-plugins"]


def invoke(tmp_path: Path, *arguments: str, **environ: str) -> Result:
    places = [*kubelet_in(tmp_path), "--state-dir", str(tmp_path / "s")]
    return CliRunner().invoke(kdp, ["doctor", *places, *arguments], env={"KDP_SOCKET": "", **environ})


def found_by(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    result = invoke(tmp_path, *arguments, "--format", "json")
    found = json.loads(result.stdout)
    return {each["id"]: each for each in found["questions"]}


@pytest.mark.parametrize(
    ("answer", "code"),
    [(ok("a"), 0), (warning("a\x1b", "r"), 0), (failed("a", "r"), 1), (not_known("a"), 4)],
)
def test_the_exit_code_is_that_of_the_worst_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, code: int
) -> None:
    questions: tuple[Question[Any], ...] = (
        Question(id="a", title="Is it?", why="It matters.", ask=lambda node: answer),
        Question(id="b", title="Is that?", why="It does not.", ask=lambda node: ok("b")),
    )
    monkeypatch.setattr(doctor, "QUESTIONS", questions)
    result = invoke(tmp_path)
    assert result.exit_code == code
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{answer.verdict.value:9}  Is it? a")
    is_bad = answer.verdict.value in ("warning", "failed")
    assert ("           why: It matters." in lines) == is_bad
    assert ("           do:  r" in lines) == is_bad
    assert lines[-1].startswith("2 questions: ")
    assert "\x1b" not in result.stdout
    assert "           why: It does not." in invoke(tmp_path, "--all").stdout


@pytest.mark.parametrize("arguments", [["--poll-interval", "3"], ["a", "b"]])
def test_a_wrong_option_has_a_code_of_its_own(tmp_path: Path, arguments: list[str]) -> None:
    result = invoke(tmp_path, *arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_a_target_is_asked_what_it_needs(tmp_path: Path) -> None:
    program = tmp_path / "w.py"
    program.write_text(WIDGETS)
    found = found_by(tmp_path, f"{program}:Widgets")
    assert [found[each]["answer"] for each in ("target", "resource-name", "opened-nodes")] == ["ok"] * 3
    found = found_by(tmp_path, f"{program}:Broken")
    assert found["target"]["answer"] == "failed"
    assert "Broken.needs raised OSError: no\\x1b[31m" in found["target"]["seen"]
    found = found_by(tmp_path, f"{program}:Absent")
    assert (found["target"]["answer"], found["opened-nodes"]["answer"]) == ("failed", "not known")
    found = found_by(tmp_path)  # an ordinary call: 25 answers were "not known", and a script could not use the code
    assert not {"target", "opened-nodes", "configuration-file"} & found.keys()


def test_the_cdi_directory_of_the_environment_made_the_target_unloadable(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(WIDGETS)
    result = invoke(tmp_path, f"{tmp_path}/w.py:Widgets", "--format", "json", KDP_CDI_DIR=f"{tmp_path}/x")
    found = {each["id"]: each for each in json.loads(result.stdout)["questions"]}
    assert found["target"]["answer"] == "ok", found["target"]["seen"]


def test_the_directories_of_a_configuration_file_were_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"state-dir: {tmp_path}/of-file\ncdi-dir: {tmp_path}/cdi-of-file\nmode: dra\nset: {{a: 1}}\n")
    (tmp_path / "of-file").touch()
    monkeypatch.setenv("KDP_CONFIG", str(config))  # as in the plugin's container; it was an error without a TARGET
    result = CliRunner().invoke(kdp, ["doctor", *kubelet_in(tmp_path), "--format", "json"])
    found = {each["id"]: each for each in json.loads(result.stdout)["questions"]}
    assert found["state-directory"]["seen"] == f"{tmp_path}/of-file is no directory"
    assert f"{tmp_path}/cdi-of-file" in found["cdi-directory"]["seen"]
    (tmp_path / "s").touch()
    found = found_by(tmp_path, f"--config={config}")
    assert found["state-directory"]["seen"] == f"{tmp_path}/s is no directory"  # a flag wins


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("stat-dir: /x\n", "unknown key 'stat-dir'; did you mean 'state-dir'?"),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_a_bad_configuration_file_keeps_no_answer_back(tmp_path: Path, text: str | None, seen: str) -> None:
    if text is not None:
        (tmp_path / "c.yaml").write_text(text)
    found = found_by(tmp_path, f"--config={tmp_path}/c.yaml")
    assert found["configuration-file"]["answer"] == "failed"
    assert seen in found["configuration-file"]["seen"]
    assert found["kubelet-directory"]["answer"] == "failed"
    (tmp_path / "c.yaml").write_text(f"state-dir: {tmp_path}\n")
    assert found_by(tmp_path, f"--config={tmp_path}/c.yaml")["configuration-file"]["answer"] == "ok"


def test_a_target_that_hangs_keeps_nobody_waiting(tmp_path: Path, figure: Callable[[str, float, str], None]) -> None:
    (tmp_path / "w.py").write_text("import time\ntime.sleep(60)\n")
    places = [*kubelet_in(tmp_path), "--state-dir", str(tmp_path / "s")]
    began = time.monotonic()
    command = [sys.executable, "-m", "kdp", "doctor", f"{tmp_path}/w.py:W", *places, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    figure("kdp doctor with a target that hangs", time.monotonic() - began, "s")
    found = {each["id"]: each for each in json.loads(done.stdout)["questions"]}
    assert found["target"]["seen"] == "no answer within 3.5 s"
    assert found["kubelet-socket"]["answer"] == "failed"
    assert (done.returncode, done.stderr) == (1, "")


def bundled(tmp_path: Path, *arguments: str, **environ: str) -> Result:
    (tmp_path / "host").mkdir(exist_ok=True)
    return invoke(tmp_path, f"--host-root={tmp_path}/host", f"--bundle={tmp_path}/b.tar.gz", *arguments, **environ)


def test_a_bundle_is_written_without_secrets_and_says_first_what_is_in_it(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"state-dir: {tmp_path}/s\nset: {{url: 'https://me:hunter2@example.com', pin_password: 4711x}}\n")
    variables = {"KDP_SET_TOKEN": "t0ken-of-the-vendor", "KDP_LOG_LEVEL": "debug"}
    result = bundled(tmp_path, f"--config={config}", **variables)
    assert (result.exit_code, result.stderr) == (0, "")
    first, *lines, _, last = result.stdout.splitlines()
    assert first.startswith("The bundle holds, without serial numbers,")
    assert "  kdp-bundle/answers.json: the answers of kdp doctor, " in "\n".join(lines)
    assert last.startswith(f"{tmp_path}/b.tar.gz: ")
    assert stat.S_IMODE((tmp_path / "b.tar.gz").stat().st_mode) == 0o600
    with tarfile.open(tmp_path / "b.tar.gz") as opened:
        held = opened.extractfile("kdp-bundle/settings.json")
        assert held is not None
        settings = json.load(held)
    assert settings["doctor"]["settings"]["KDP_LOG_LEVEL"] == "debug"
    assert settings["doctor"]["parameters"] == {"url": "left out", "pin_password": "left out", "TOKEN": "left out"}
    plain = gzip.decompress((tmp_path / "b.tar.gz").read_bytes())
    assert not [secret for secret in (b"hunter2", b"4711x", b"t0ken-of-the-vendor") if secret in plain]


def test_a_bundle_kept_the_secrets_of_a_file_that_is_wrong(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("poll-intervall: 5\nset: {pin_password: 4711x-of-the-vendor}\n")
    assert bundled(tmp_path, f"--config={config}", KDP_NODE_NAME="n-4711x-of-the-vendor").exit_code == 0
    assert b"4711x" not in gzip.decompress((tmp_path / "b.tar.gz").read_bytes())


def test_a_bundle_is_read_on_a_laptop(tmp_path: Path) -> None:
    assert bundled(tmp_path).exit_code == 0
    there = found_by(tmp_path, f"--host-root={tmp_path}/host")
    result = CliRunner().invoke(kdp, ["doctor", "--from", f"{tmp_path}/b.tar.gz"])
    assert result.exit_code == 1
    head, _, *lines = result.stdout.splitlines()
    assert head.startswith("the answers of ")
    assert f", by kdp {__version__}, " in head
    assert lines[0].startswith("failed     Is the plugin directory there? ")
    result = CliRunner().invoke(kdp, ["doctor", "--from", f"{tmp_path}/b.tar.gz", "--format", "json"])
    found = {each["id"]: each for each in json.loads(result.stdout)["questions"]}
    assert found.keys() == there.keys()
    assert found["kubelet-directory"] == there["kubelet-directory"]


@pytest.mark.parametrize(
    ("more", "named"),
    [(["widgets:W"], "TARGET"), (["--state-dir", "s"], "--state-dir")],
)
def test_what_is_about_this_machine_is_refused_beside_a_node_name(more: list[str], named: str) -> None:
    result = CliRunner().invoke(kdp, ["doctor", "--node-name", "node-0", *more])
    assert result.exit_code == 2
    assert f"--node-name and {named}: the API server is asked about the node" in result.stderr


def test_a_node_seen_from_outside_has_the_same_form_of_answers(tmp_path: Path) -> None:
    file = write_kubeconfig(tmp_path, "http://127.0.0.1:1")
    command = ["doctor", "--node-name", "node-0", "--kubeconfig", str(file), "--format", "json"]
    result = CliRunner().invoke(kdp, command)
    found = {each["id"]: each for each in json.loads(result.stdout)["questions"]}
    assert result.exit_code == 1
    assert found["outside-api-server"]["answer"] == "failed"
    assert {each["answer"] for name, each in found.items() if name != "outside-api-server"} <= {"not known", "ok"}
    assert "kubelet-directory" not in found
    assert CliRunner().invoke(kdp, ["doctor", "--node-name", "Node_0"]).exit_code == 2
