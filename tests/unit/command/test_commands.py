from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner

from kdp.command.app import kdp

pytestmark = pytest.mark.usefixtures("no_living_plugin")

TARGET = """
import time
import kdp

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    def __init__(self, count: int = 2, fault: str = "") -> None:
        self.count, self.fault = count, fault

    def discover(self):
        if self.fault == "not ready":
            raise kdp.NotReady("driver not loaded")
        if self.fault:
            raise ValueError(self.fault)
        for i in range(self.count):
            yield kdp.Device(
                id=f"w{i}", numa_nodes=(i,), unit="card",
                attributes={"model": "[bold]x"}, capacity={"memory": kdp.Quantity("8Gi")},
                health=kdp.Health.healthy() if i else kdp.Health.unhealthy("fan failed"),
                edits=kdp.ContainerEdits(
                    env={"W": str(i)}, device_nodes=[kdp.DeviceNode(host_path="/dev/null")],
                    mounts=[kdp.Mount(host_path="/tmp", read_only=True)], annotations={"a": "b"},
                    hooks=[kdp.CdiHook(name="prestart", path="/bin/true")],
                ),
            )

class Unnamed(kdp.DeviceBackend):
    def discover(self):
        return []

class Partitions(kdp.DeviceBackend):
    def discover(self):
        yield kdp.Device(id="whole", resource="example.com/card")
        yield kdp.Device(id="half", resource="example.com/card", exists=False)
        yield kdp.Device(id="quarter", resource="example.com/part", exists=False)
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "widgets.py").write_text(TARGET)
    return f"{tmp_path}/widgets.py:Widgets"


def test_devices_as_json_has_the_promised_shape(target: str) -> None:
    result = CliRunner().invoke(kdp, ["devices", target, "--set", "count=1", "--format", "json"])
    assert result.exit_code == 0
    assert json.loads(result.output) == {
        "resources": {
            "example.com/widget": [
                {
                    "id": "w0",
                    "health": "Unhealthy",
                    "reason": "fan failed",
                    "numa_nodes": [0],
                    "edits": {
                        "env": {"W": "0"},
                        "device_nodes": [
                            {"host_path": "/dev/null", "container_path": "/dev/null", "permissions": "rw"}
                        ],
                        "mounts": [{"host_path": "/tmp", "container_path": "/tmp", "read_only": True}],
                        "annotations": {"a": "b"},
                        "hooks": [{"name": "prestart", "path": "/bin/true", "args": [], "env": [], "timeout": None}],
                        "cdi_devices": [],
                    },
                    "attributes": {"model": "[bold]x"},
                    "capacity": {"memory": "8Gi"},
                    "unit": "card",
                }
            ]
        }
    }


def test_a_partition_that_is_still_to_be_made_was_listed(target: str) -> None:
    result = CliRunner().invoke(kdp, ["devices", target.replace(":Widgets", ":Partitions"), "--format", "json"])
    found = json.loads(result.stdout)["resources"]
    assert {name: [device["id"] for device in held] for name, held in found.items()} == {"example.com/card": ["whole"]}


def test_a_host_root_that_does_not_exist_was_a_node_without_devices(target: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kdp", "devices", target, "--host-root", "/nonexistent"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "--host-root /nonexistent: there is no such directory; correct the path, or mount" in done.stderr


def test_devices_as_a_table_has_whole_lines_in_a_pipe(target: str) -> None:
    result = CliRunner().invoke(kdp, ["devices", target])
    assert result.exit_code == 0
    first, header, w0, w1 = result.output.splitlines()
    assert first == "example.com/widget: 2 devices, 1 healthy"
    assert header.split() == ["ID", "HEALTH", "NUMA", "UNIT", "CONTAINER", "GETS", "ATTRIBUTES"]
    assert "w0  Unhealthy (fan failed)" in w0
    assert "/dev/null 1 mount W=1 1 annotation 1 hook" in w1
    assert "model=[bold]x memory=8Gi" in w1


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("not ready", r"kdp devices: driver not loaded\n"),
        ("boom", r"kdp devices: discover\(\) of Widgets raised ValueError: .* \(/.*\.py, line \d+\)\n"),
    ],
)
def test_a_discovery_that_fails_is_told_with_exit_code_1(target: str, fault: str, sentence: str) -> None:
    result = CliRunner().invoke(kdp, ["devices", target, "--set", f"fault={fault}"])
    assert result.exit_code == 1
    assert re.search(f"{sentence}$", result.stderr)
    assert result.stdout == ""


def test_kdps_own_frames_stood_before_a_vendors_mistake(target: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "import kdp\nclass W(kdp.DeviceBackend):\n    def discover(self): return ['a']\n"
    )
    wrong = CliRunner().invoke(kdp, ["devices", f"{tmp_path}/wrong.py:W"])
    assert wrong.stderr == "kdp devices: discover() of W: it returned 'a': must be a kdp.Device, this is a str\n"

    raised = CliRunner().invoke(kdp, ["devices", target, "--set", "fault=boom"])
    head, frame, code, *_, sentence = raised.stderr.splitlines()
    assert head == "Traceback (most recent call last):"
    assert frame.startswith(f'  File "{tmp_path}/widgets.py", line ')
    assert code == "    raise ValueError(self.fault)"
    assert "ValueError: boom" in sentence
    assert raised.stderr.count("boom") == 1, "it is told once"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["{target}", "--set", "count=x"],
            "kdp devices: --set count: 'x' does not fit; Widgets expects a whole number (int)",
        ),
        (["{target}", "--set", "count"], "kdp devices: --set: 'count' must be NAME=VALUE; for example --set count=4"),
        (["{target}", "--config", "/none"], "kdp devices: configuration file /none: cannot be read (No such file"),
        (["nothing"], "kdp devices: target 'nothing': no such entry point"),
    ],
)
def test_what_is_given_wrong_is_one_sentence_and_exit_code_2(target: str, arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(kdp, ["devices", *(argument.format(target=target) for argument in arguments)])
    assert result.exit_code == 2
    assert result.stderr.startswith(sentence)
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_flags_win_over_variables_and_variables_over_the_file(target: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("set: {count: 1}\n")

    def count(*flags: str, **environment: str) -> int:
        result = CliRunner().invoke(kdp, ["devices", target, "--format", "json", *flags], env=environment)
        assert result.exit_code == 0, result.output
        return len(json.loads(result.output)["resources"]["example.com/widget"])

    config = f"--config={tmp_path}/c.yaml"
    assert count() == 2
    assert count(config) == 1
    assert count(KDP_CONFIG=f"{tmp_path}/c.yaml") == 1
    assert count(config, KDP_SET_COUNT="3") == 3
    assert count(config, "--set", "count=4", KDP_SET_COUNT="3") == 4


def test_the_host_root_reaches_the_backend(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(
        "import kdp\n"
        "from kdp.hardware import Host\n"
        "class W(kdp.DeviceBackend):\n"
        "    resource = 'example.com/w'\n"
        "    def __init__(self, host: Host): self.host = host\n"
        "    def discover(self): return [kdp.Device(id=self.host.root.name)]\n"
    )
    result = CliRunner().invoke(kdp, ["devices", f"{tmp_path}/w.py:W", "--host-root", "/h/root1"])
    assert "root1" in result.output


def test_run_is_stopped_as_it_says_from_its_first_line_on() -> None:
    code = (
        "import os, signal, sys\n"
        "class Signal:\n"
        "    def find_spec(self, name, *more):\n"
        "        if name == 'kdp.command.app': os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Signal())\n"
        "sys.argv = ['kdp', 'run', 'nothing']\n"
        "from kdp.command import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_run_is_not_interrupted_in_the_middle_of_loading_grpc(tmp_path: Path) -> None:
    """It crashed: the C core does not survive half a start."""
    (tmp_path / "w.py").write_text(
        f"""{TARGET}
import os, signal, sys
import kdp.daemon.signals

kdp.daemon.signals.GRACE = 50.0  # a busy machine loads gRPC for longer than the usual two seconds

class Signal:
    def find_spec(self, name, *more):
        if name == "grpc._cython":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Signal())
"""
    )
    with TemporaryDirectory(prefix="kdp-") as root:  # short, as the paths of sockets are
        command = [sys.executable, "-m", "kdp", "run", f"{tmp_path}/w.py:Widgets", "--device-plugin-dir", root]
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0
    assert "stopping, as SIGINT asks" in result.stderr


def test_run_says_that_too_few_files_may_be_open(target: str) -> None:
    """With less than it needs, gRPC's C core crashes, or a module cannot be read in the middle of the start."""
    command = ["sh", "-c", 'ulimit -n 18; exec "$@"', "sh", sys.executable, "-m", "kdp", "run", target]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == (
        "kdp run: only 18 file descriptors may be open (ulimit -n), too few for gRPC; give this process 32 or more\n"
    )


def test_without_the_extra_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['click'] = None; from kdp.command import main; main()"
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == (
        "kdp: the command needs click, which comes with the extra 'cli'; pip install 'kdp-sdk[cli]'\n"
    )


@pytest.mark.parametrize("command", [("device",), ("backends", "nvidia")])
def test_a_name_that_is_almost_ours_is_suggested(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"nvidia-gpu": importlib.metadata.EntryPoint("nvidia-gpu", "nowhere:N", "kdp.backends")}
    monkeypatch.setattr("kdp.command.targets.installed", lambda: points)
    result = CliRunner().invoke(kdp, command)
    assert result.exit_code == 2
    meant = "devices" if command == ("device",) else "nvidia-gpu"
    assert f"did you mean '{meant}'?" in result.output


def test_a_target_that_is_there_twice_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("raise AssertionError('it is not even loaded')")
    targets = (f"{tmp_path}/a.py:A", f"{tmp_path}/./a.py:A")
    command = [sys.executable, "-m", "kdp", "run", *targets]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == f"kdp run: target {targets[1]!r} was given twice; name each target once\n"
