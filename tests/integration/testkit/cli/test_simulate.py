"""``kdp simulate`` as a process: what it tells, what it finds wrong, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Figure = Callable[[str, float, str], None]

PROGRAM = """
import os, sys, threading
import kdp

class W(kdp.DeviceBackend):
    resource = "example.com/widget"
    poll_interval = None

    def __init__(self, count: int = 2) -> None:
        self.count = count

    def discover(self):
        return [
            kdp.Device(id=f"w{i}", edits=kdp.ContainerEdits(
                env={"W": "1"}, device_nodes=[kdp.DeviceNode(host_path="/dev/null")],
                mounts=[kdp.Mount(host_path="/tmp", read_only=True)], annotations={"a": "b"},
            ))
            for i in range(self.count)
        ]
    # more
"""


class Simulation:
    """``kdp simulate`` on a program, in a temporary directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.temporary = directory / "t"
        self.temporary.mkdir()

    def command(self, more: str, *arguments: str) -> list[str]:
        program = self.directory / "w.py"
        program.write_text(PROGRAM.replace("# more", more.strip().replace("\n", "\n    ")))
        return [sys.executable, "-m", "kdp", "simulate", f"{program}:W", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.temporary)}

    def run(self, more: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            self.command(more, *arguments),
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment,
        )
        assert list(self.temporary.iterdir()) == []
        return result

    @contextmanager
    def running(self, more: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
        """Start it; give its process, and the plugin's process id as soon as that is serving."""
        with subprocess.Popen(
            self.command(more, "--format", "json", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self.environment,
        ) as process:
            try:
                assert process.stdout is not None
                pid = next(line["pid"] for line in map(json.loads, process.stdout) if "pid" in line)
                yield process, pid
            finally:
                process.kill()


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as directory:  # short, because a socket's path is
        yield Simulation(Path(directory))


def lines(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_good_plugin_passes_and_every_step_is_told(simulation: Simulation, figure: Figure) -> None:
    result = simulation.run("", "--format", "json", "--profile", "k136")
    assert (result.returncode, result.stderr) == (0, "")
    told = lines(result)
    assert [line["event"] for line in told] == [
        "kubelet_started",
        "plugin_started",
        "registered",
        "listed",
        "pod_admitted",
        "pod_admitted",
        "kubelet_killed",
        "kubelet_started",
        "registered_again",
        "stop_asked",
        "stopped",
        "passed",
    ]
    by_event = {line["event"]: line for line in told}
    assert by_event["listed"]["devices"] == ["w0", "w1"]
    assert [len(line["devices"]) for line in told if line["event"] == "pod_admitted"] == [1, 2]
    assert by_event["pod_admitted"]["reply"] == {
        "env": {"W": "1"},
        "device_nodes": [{"host_path": "/dev/null", "container_path": "/dev/null", "permissions": "rw"}],
        "mounts": [{"host_path": "/tmp", "container_path": "/tmp", "read_only": True}],
        "annotations": {"a": "b"},
        "cdi_devices": [],
    }
    assert by_event["stopped"]["exit_code"] == 0
    assert [line["time"] for line in told] == sorted(line["time"] for line in told)
    figure("kdp simulate, k136: listening to registered", by_event["registered_again"]["seconds"] * 1000, "ms")


@pytest.mark.slow
def test_for_people_the_same_is_told_in_lines(simulation: Simulation) -> None:
    result = simulation.run("", "--set", "count=1", "--registration", "watcher")
    assert (result.returncode, result.stderr) == (0, "")
    for text in (
        "kubelet k137 listens in ",
        "example.com/widget registered, ",
        "example.com/widget: 1 device, 1 healthy",
        "one example.com/widget is w0; its container gets",
        "            env W=1",
        "            device /dev/null at /dev/null, rw",
        "            mount /tmp at /tmp, read-only",
        "            annotation a=b",
        "kubelet killed",
        " registered again, ",
        "plugin asked to stop (SIGTERM)",
        "plugin ended with exit code 0 after ",
        "passed",
    ):
        assert text in result.stdout


CONTRADICTING = """
def discover(self):
    return [kdp.Device(id=f"w{i}", edits=kdp.ContainerEdits(env={"W": str(i)})) for i in range(self.count)]
"""

WITH_NODES = """
def discover(self):
    return [kdp.Device(id=f"w{i}", numa_nodes=(i // 3,)) for i in range(self.count)]
"""


@pytest.mark.slow
def test_a_plugin_that_fails_with_two_devices_passed(simulation: Simulation) -> None:
    result = simulation.run(CONTRADICTING)
    assert result.returncode == 1
    last = result.stdout.splitlines()[-1]
    assert "failed: the pod was refused: UnexpectedAdmissionError: " in last
    assert "devices 'w0' and 'w1'" in last


@pytest.mark.slow
def test_a_backend_may_refuse_several_devices_with_a_sentence(simulation: Simulation) -> None:
    more = """
def allocate(self, devices):
    if len(devices) > 1:
        raise kdp.AllocationError("one widget is enough for a container")
    return devices[0].edits
"""
    result = simulation.run(more)
    assert (result.returncode, result.stderr) == (0, "")
    assert "a pod with 2 example.com/widget is refused: one widget is enough for a container\n" in result.stdout


@pytest.mark.slow
def test_pods_ask_for_as_many_devices_as_a_numa_node_has_and_for_all(simulation: Simulation) -> None:
    result = simulation.run(WITH_NODES, "--set", "count=7", "--format", "json")
    assert result.returncode == 0
    assert [len(line["devices"]) for line in lines(result) if line["event"] == "pod_admitted"] == [1, 2, 3, 7]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "sentence", "log"),
    [
        (
            "def open(self): raise kdp.NotReady('driver not loaded')",
            "the plugin did not register within 5 s: W: driver not loaded",
            "W is not ready: driver not loaded",
        ),
        (
            "def discover(self): raise OSError('no such ring')",
            "the plugin cannot list its devices: W: discover() of W raised OSError; the plugin's log has the details",
            "OSError: no such ring",
        ),
        (
            "def allocate(self, devices): threading.Event().wait()",
            "a pod that asks for one example.com/widget got no answer within 5 s",
            "",
        ),
        (
            "def allocate(self, devices): os._exit(7)",
            "the plugin ended with exit code 7 although nobody asked it to",
            "",
        ),
        (
            "def close(self): os._exit(5)",
            "the plugin ended with exit code 5 after SIGTERM; it must end with exit code 0",
            "",
        ),
    ],
)
def test_a_plugin_that_fails_is_told_why_with_its_log(
    simulation: Simulation, more: str, sentence: str, log: str
) -> None:
    told = re.search(r"within (\d+) s", sentence)
    result = simulation.run(more, "--deadline", told[1] if told else "30")
    assert result.returncode == 1
    last = result.stdout.splitlines()[-1]
    assert "failed: " in last
    assert sentence in last
    assert log in result.stderr
    assert "Traceback (most recent call last)" not in result.stdout


@pytest.mark.slow
def test_a_temporary_directory_with_a_long_name_is_told(simulation: Simulation) -> None:
    simulation.temporary = simulation.directory / ("t" * 90)
    simulation.temporary.mkdir()
    result = simulation.run("")
    assert result.returncode == 2
    assert result.stderr.startswith(f"kdp simulate: {simulation.temporary}/kdp-")
    assert result.stderr.endswith("choose a shorter root (the variable TMPDIR says where)\n")


def test_a_wrong_plugin_is_exit_code_2(simulation: Simulation) -> None:
    result = simulation.run("resource = 'widget'")
    assert result.returncode == 2
    assert result.stderr.startswith("kdp simulate: W.resource: resource name 'widget': must be a domain")
    assert result.stdout == ""


CHILD = """
def open(self):
    import subprocess
    child = subprocess.Popen(["sleep", "3600"])
    with open(os.environ["TMPDIR"] + "/../child", "w") as file:
        file.write(str(child.pid))
def allocate(self, devices):
    threading.Event().wait()
"""


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


@pytest.mark.slow
def test_interrupted_it_leaves_nothing_running_and_no_file(simulation: Simulation) -> None:
    with simulation.running(CHILD) as (process, pid):
        assert process.stdout is not None
        next(line for line in process.stdout if "listed" in line)
        child = int((simulation.directory / "child").read_text())
        process.send_signal(signal.SIGINT)
        *_, last = map(json.loads, process.stdout)
        assert last["event"] == "failed"
        assert last["reason"] == "interrupted by SIGINT"
        assert process.wait(20) == 1
        wait_until(lambda: ended(pid) and ended(child))
    assert list(simulation.temporary.iterdir()) == []


@pytest.mark.slow
def test_killed_its_plugin_ends_too(simulation: Simulation) -> None:
    with simulation.running("def allocate(self, devices): threading.Event().wait()") as (process, pid):
        process.kill()
        process.wait(20)
        wait_until(lambda: ended(pid))


@pytest.mark.slow
def test_a_snapshot_s_node_is_simulated_and_its_files_are_removed(simulation: Simulation) -> None:
    recorded = Path(__file__).parents[3] / "data/hardware/dfl-6.1.tar.gz"
    more = """
def __init__(self, host: __import__("kdp.hardware").hardware.Host) -> None:
    self.host = host

def discover(self):
    ports = [port for region in self.host.class_devices("fpga_region") for port in region.children("dfl-port.*")]
    return [kdp.Device(id=port.name, edits=kdp.ContainerEdits.of_node(port.node)) for port in ports]
"""
    result = simulation.run(more, "--snapshot", str(recorded))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 devices" in result.stdout
    assert "device /dev/dfl-port." in result.stdout


@pytest.mark.parametrize(
    "read",
    [
        "open('/sys/devices/system/cpu/possible')",
        "os.listdir('/sys/bus')",
        "__import__('glob').glob('/dev/*')",
    ],
)
def test_a_class_that_read_this_machine_beside_the_given_node_passed(simulation: Simulation, read: str) -> None:
    recorded = Path(__file__).parents[3] / "data/hardware/dfl-6.1.tar.gz"
    more = f"""
def __init__(self, host: __import__("kdp.hardware").hardware.Host) -> None:
    self.host = host

def discover(self):
    {read}
    return [kdp.Device(id="w0")]
"""
    result = simulation.run(more, "--snapshot", str(recorded))
    assert result.returncode == 1, result.stdout
    place = "/dev" if "glob" in read else "/sys/"
    assert re.search(rf"/w\.py:\d+: a hook reads {place}.* of this machine, and not of the node", result.stdout)
    assert result.stdout.count("a hook reads") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("def watch(self, report): raise OSError('no such ring')", "watch() of W failed: OSError: no such ring"),
        ("async def reset(self): pass\nasync def open(self): self.reset()", "was never awaited"),
        ("async def open(self): import time; time.sleep(1.2)", "open() of W has kept the event loop for 1 s, at "),
        ("def open(self): return {}", "open() of W returned a dict, which nobody reads"),
    ],
)
def test_what_the_log_complains_of_fails_unless_lenient(simulation: Simulation, more: str, says: str) -> None:
    result = simulation.run(more)
    assert result.returncode == 1
    assert says in result.stdout
    assert "every step passed, but the log has warnings or errors" in result.stdout


@pytest.mark.slow
def test_complaints_pass_if_lenient(simulation: Simulation) -> None:
    result = simulation.run("polcy = 'packed'", "--lenient")
    assert result.returncode == 0
    assert "did you mean 'policy'?" in result.stdout


@pytest.mark.slow
def test_a_module_that_configures_the_log_made_it_fail(simulation: Simulation) -> None:
    result = simulation.run("import logging; logging.basicConfig(level=logging.INFO, format='MINE %(message)s')")
    assert result.returncode == 0, result.stdout + result.stderr


def test_without_a_healthy_device_it_fails_with_the_reasons(simulation: Simulation) -> None:
    more = "def discover(self): return [kdp.Device(id='w', health=kdp.Health.unhealthy('fan failed'))]"
    result = simulation.run(more)
    assert result.returncode == 1
    assert "failed: no device is healthy, so no pod was tried: w of example.com/widget: fan failed" in result.stdout
    lenient = simulation.run(more, "--lenient")
    assert lenient.returncode == 0
    assert "example.com/widget: no healthy device, so no pod is tried" in lenient.stdout


SLOTS = """
resources = ("example.com/slot",)

def discover(self):
    yield kdp.Device(id="c0", consumes={"c0": {"slots": 2}})
    for number in range(2):
        yield kdp.Device(id=f"c0-s{number}", resource="example.com/slot", consumes={"c0": {"slots": 1}})

def counters(self):
    return {"c0": {"slots": 2}}
"""


@pytest.mark.slow
def test_the_second_resource_of_a_card_with_slots_was_not_tried(simulation: Simulation) -> None:
    result = simulation.run(SLOTS, "--format", "json")
    assert (result.returncode, result.stderr) == (0, "")
    told = [line for line in lines(result) if line["event"] in ("pod_admitted", "pods_ended", "pod_refused")]
    assert [(line["event"], line["resource"]) for line in told] == [
        ("pod_admitted", "example.com/slot"),
        ("pod_admitted", "example.com/slot"),
        ("pods_ended", "example.com/widget"),
        ("pod_admitted", "example.com/widget"),
    ]


def test_devices_that_contradict_the_counters_passed(simulation: Simulation) -> None:
    wrong = SLOTS.replace('return {"c0": {"slots": 2}}', 'return {"c1": {"slots": 2}}')
    result = simulation.run(wrong, "--format", "json")
    assert result.returncode == 1
    assert lines(result)[-1]["reason"].endswith(
        "it needs 2 of slots of c0, which counters() does not declare; declare it there, or pass --lenient"
    )


def test_a_claim_has_devices_of_each_kind(simulation: Simulation) -> None:
    result = simulation.run(SLOTS, "--mode", "dra", "--format", "json")
    assert (result.returncode, result.stderr) == (0, "")
    claims = [line["devices"] for line in lines(result) if line["event"] == "claim_prepared"]
    assert claims == [["c0"], ["c0-s0"], ["c0-s0", "c0-s1"], ["c0-s0", "c0-s1"]]


def test_a_second_resource_that_refuses_each_pod_passed(simulation: Simulation) -> None:
    """It was tried again for a minute and a half, and then called a resource without a healthy device."""
    refusing = """
resources = ("example.com/xl",)

def discover(self):
    return [kdp.Device(id="w0"), kdp.Device(id="x0", resource="example.com/xl")]

def allocate(self, devices):
    if devices.resource == "example.com/xl":
        raise kdp.AllocationError("the card is locked")
    return kdp.ContainerEdits()
"""
    result = simulation.run(refusing, "--format", "json")
    assert result.returncode == 1
    assert "the card is locked" in lines(result)[-1]["reason"]
