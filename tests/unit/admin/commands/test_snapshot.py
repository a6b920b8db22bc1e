"""``kdp snapshot``, and ``--snapshot`` of the other commands."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from kdp.command.app import kdp
from kdp.hardware import Host

RECORDED = Path(__file__).parents[3] / "data/hardware"

TARGET = """
import kdp
import kdp.hardware

class Rdma(kdp.DeviceBackend):
    resource = "example.com/rdma"

    def __init__(self, host: kdp.hardware.Host, fail: bool = False) -> None:
        self.host, self.fail = host, fail

    def discover(self):
        devices = [self.device(verbs) for verbs in self.host.class_devices("infiniband_verbs")]
        if self.fail:
            raise kdp.NotReady("driver not loaded")
        return devices

    def device(self, verbs):
        name = verbs.text("ibdev").value
        state = self.host.directory(f"/sys/class/infiniband/{name}").text("ports/1/state")
        healthy = state.value == "4: ACTIVE"
        reason = f"port 1 is {state.value or state.problem}"
        return kdp.Device(
            id=name,
            health=kdp.Health.healthy() if healthy else kdp.Health.unhealthy(reason),
            edits=kdp.ContainerEdits.of_node(verbs.node),
        )

class Blind(kdp.DeviceBackend):
    resource = "example.com/null"

    def discover(self):
        return [kdp.Device(id="null", edits=kdp.ContainerEdits.of_node("/dev/null"))]

class Stubborn(Rdma):
    def __init__(self) -> None:
        super().__init__(kdp.hardware.Host())
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    (tmp_path / "rdma.py").write_text(TARGET)
    return f"{tmp_path}/rdma.py"


def run(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(kdp, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def health(target: str, snapshot: Path) -> dict[str, str]:
    found = json.loads(run("devices", target, "--snapshot", snapshot, "--format", "json"))
    return {device["id"]: device["reason"] or device["health"] for device in found["resources"]["example.com/rdma"]}


def test_devices_shows_what_the_backend_sees_on_that_node(module: str) -> None:
    target = f"{module}:Rdma"
    assert health(target, RECORDED / "rxe-6.1-active.tar.gz") == {"rxe0": "Healthy", "rxe1": "Healthy"}
    assert health(target, RECORDED / "rxe-6.12-active.tar.gz") == {"rxe0": "Healthy", "rxe1": "Healthy"}
    assert health(target, RECORDED / "rxe-6.1-port-down.tar.gz") == {"rxe0": "port 1 is 1: DOWN", "rxe1": "Healthy"}
    assert health(target, RECORDED / "rxe-6.1-half-removed.tar.gz") == {}


def test_a_snapshot_of_a_class_holds_what_it_needs(module: str, tmp_path: Path) -> None:
    file = tmp_path / "node.tar.gz"
    source = RECORDED / "rxe-6.1-port-down.tar.gz"
    said = run("snapshot", f"{module}:Rdma", "-o", file, "--snapshot", source)
    assert said.startswith(f"{file}: ")
    assert "2 device nodes" in said
    assert health(f"{module}:Rdma", file) == {"rxe0": "port 1 is 1: DOWN", "rxe1": "Healthy"}
    with tarfile.open(file) as archive:
        assert "sys/class/net/eth0" not in archive.getnames()
    assert file.stat().st_size < source.stat().st_size


def test_a_snapshot_without_a_class(module: str, tmp_path: Path) -> None:
    file = tmp_path / "node.tar.gz"
    run("snapshot", "-o", file, "--snapshot", RECORDED / "rxe-6.1-active.tar.gz", "--redact", "addresses")
    assert health(f"{module}:Rdma", file) == {"rxe0": "Healthy", "rxe1": "Healthy"}
    guid = Host.of_snapshot(file).reading("/sys/class/infiniband/rxe0/node_guid").value
    assert guid is not None
    assert guid.startswith("0000:0000:0000:")
    assert "redacted" in run("snapshot", "-o", file, "--redact", "serials, addresses")  # of this machine
    assert Host.of_snapshot(file).net_interface("lo") is not None


def test_a_discovery_that_fails_is_told_and_its_reads_are_kept(module: str, tmp_path: Path) -> None:
    file = tmp_path / "node.tar.gz"
    source = RECORDED / "rxe-6.1-active.tar.gz"
    said = run("snapshot", f"{module}:Rdma", "--set", "fail=yes", "-o", file, "--snapshot", source)
    assert "the discovery failed, and the snapshot holds what it read until then: driver not loaded" in said
    # Nothing was taken of the nodes: no device was returned that would have named them.
    assert set(health(f"{module}:Rdma", file)) == {"rxe0", "rxe1"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["snapshot"], "--output is missing; expected kdp snapshot [OPTIONS] [TARGET]"),
        (["snapshot", "-o", "x", "--set", "a=1"], "--set a: there is no parameter 'a'; name the TARGET that has it"),
        (["snapshot", "-o", "x", "--redact", "names"], "--redact: 'names' is not known; known are serials, addresses"),
        (["devices", "{}:Rdma", "--snapshot", "{}"], "is not a snapshot; expected a .tar.gz as kdp snapshot writes it"),
        (
            ["devices", "{}:Rdma", "--snapshot", "/none", "--host-root", "/host"],
            "--snapshot and --host-root are two answers to where the node's files are; give one",
        ),
        (
            ["devices", "{}:Stubborn", "--host-root", "/host"],
            "Stubborn reads the node's files at /, but host_root says /host",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments: list[str], reason: str, module: str) -> None:
    said = run(*[argument.format(module) for argument in arguments], code=2)
    assert reason in " ".join(said.split())


def test_run_without_its_snapshot_ends_with_one_sentence(module: str) -> None:
    # In a process of its own: `kdp run` takes the signals over, of whichever process it is in.
    command = [sys.executable, "-m", "kdp", "run", f"{module}:Rdma", "--snapshot", "/none"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "kdp run: snapshot /none: cannot be read (No such file or directory)\n"


def test_a_class_without_a_host_ignored_the_snapshot_silently(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text("import kdp\nclass W(kdp.DeviceBackend):\n    def discover(self): return []\n")
    said = run("devices", f"{tmp_path}/w.py:W", "--snapshot", RECORDED / "rxe-6.1-active.tar.gz", code=2)
    assert said == (
        "kdp devices: --snapshot: W has no parameter of type kdp.hardware.Host, so it would read this machine's files; "
        "give its constructor 'host: kdp.hardware.Host', or leave --snapshot out\n"
    )
