"""``kdp simulate --mode dra`` as a process: what it tells, what it finds wrong, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .test_simulate import Simulation, lines

Figure = Callable[[str, float, str], None]

DRA = ("--mode", "dra")
PLAIN = """
def discover(self):
    return [kdp.Device(id=f"w{i}", edits=kdp.ContainerEdits(
        env={"W": "1"}, device_nodes=[kdp.DeviceNode(host_path="/dev/null", container_path="/dev/w")],
        mounts=[kdp.Mount(host_path="/tmp", read_only=True)],
    )) for i in range(self.count)]
"""


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as directory:  # short, because a socket's path is
        yield Simulation(Path(directory))


def test_it_tells_what_happens(simulation: Simulation, figure: Figure) -> None:
    result = simulation.run(PLAIN, *DRA, "--format", "json", "--profile", "k136")
    assert result.returncode == 0, result.stdout + result.stderr
    told = lines(result)
    assert [each["event"] for each in told] == [
        "kubelet_started",
        "driver_started",
        "registered",
        "published",
        "claim_prepared",
        "claim_prepared",
        "claim_prepared",
        "kubelet_killed",
        "kubelet_started",
        "published_again",
        "claim_unprepared",
        "stop_asked",
        "stopped",
        "slices_stay",
        "passed",
    ]
    assert [each["time"] for each in told] == sorted(each["time"] for each in told)
    by_name = {each["event"]: each for each in told}
    assert by_name["registered"]["driver"] == "widget.example.com"
    assert by_name["published"]["devices"] == ["w0", "w1"]
    one, both, apart = (each for each in told if each["event"] == "claim_prepared")
    assert (one["devices"], both["devices"]) == (["w0"], ["w0", "w1"])
    assert (one["pools"], len(one["cdi_ids"])) == (["node0"], 1)
    assert one["edits"]["env"] == ["W=1"]
    assert (len(both["cdi_ids"]), both["edits"]["env"]) == (2, ["W=1", "W=1"])
    assert (len(apart["cdi_ids"]), apart["edits"]["env"]) == (2, ["W=1", "W=1"])
    assert by_name["published_again"]["devices"] == ["w0", "w1"]
    assert by_name["stopped"]["exit_code"] == 0
    figure("simulate --mode dra, k136: slices are back after", 1000 * by_name["published_again"]["seconds"], "ms")


def test_two_requests_that_contradict_each_other_passed(simulation: Simulation) -> None:
    more = """
def allocate(self, devices):
    return kdp.ContainerEdits(env={"W": ",".join(devices.ids)})
"""
    result = simulation.run(PLAIN + more, *DRA, "--format", "json")
    assert result.returncode == 1
    assert (
        "requests r0 and r1 set environment variable W to different values, w0 and w1" in (lines(result)[-1]["reason"])
    )


@pytest.mark.slow
def test_for_people(simulation: Simulation) -> None:
    more = """
    def discover(self):
        edits = kdp.ContainerEdits(env={"W": "1"})
        return [kdp.Device(id="link", capacity={"bandwidth": 10}, shareable=True, edits=edits)]

    def allocate(self, devices):
        devices.network["link"] = kdp.NetworkData(interface_name="eth1", ips=["192.0.2.5/24"])
        if devices.share_id == {} or devices.consumed == {}:
            raise kdp.AllocationError("it is not shared")
        return devices.edits()
    """
    result = simulation.run(textwrap.dedent(more), *DRA, "--device-status", "on", "--driver-name", "links.example.com")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "links.example.com: 1 device in 1 slice of pool node0" in result.stdout
    assert "it has link; its container gets\n            env W=1\n" in result.stdout
    assert "the claim says of link: Ready; interfaceName eth1; ips 192.0.2.5/24" in result.stdout
    assert result.stdout.rstrip().endswith("passed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            "def released(self, devices): raise OSError('it is stuck')",
            "failed: a claim of w0, w1 was not prepared within 20 s; the driver keeps w0 back by the taint .*/",
        ),
        (
            "def discover(self): raise kdp.NotReady('no driver')",
            "not registered, or published nothing within 3 s: W: no driver",
        ),
        (
            "def allocate(self, devices): os._exit(7)",
            "failed: the driver ended with exit code 7 although nobody asked it to",
        ),
    ],
)
def test_what_is_wrong_is_the_last_line(simulation: Simulation, more: str, reason: str) -> None:
    if "discover" not in more:
        more = PLAIN + more
    result = simulation.run(more, *DRA, "--deadline", "3" if "no driver" in reason else "20")
    assert result.returncode == 1
    assert re.search(reason, result.stdout.splitlines()[-1]), result.stdout
    assert result.stderr.startswith("the driver's log:\n")


CONTRADICTING = """
def discover(self):
    return [kdp.Device(id=f"w{i}", edits=kdp.ContainerEdits(env={"W": str(i)})) for i in range(self.count)]
"""


@pytest.mark.slow
def test_a_driver_that_fails_with_two_devices_passed(simulation: Simulation) -> None:
    result = simulation.run(CONTRADICTING, *DRA, "--lenient")
    assert result.returncode == 1, result.stdout
    last = result.stdout.splitlines()[-1]
    assert "failed: the pod could not " in last
    assert "devices 'w0' and 'w1'" in last
    assert simulation.run(CONTRADICTING, *DRA, "--set", "count=1").returncode == 0


@pytest.mark.slow
def test_a_backend_may_refuse_several_devices_with_a_sentence(simulation: Simulation) -> None:
    more = """
def allocate(self, devices):
    if len(devices) > 1:
        raise kdp.AllocationError("one widget is enough for a container")
    return devices.edits()
"""
    result = simulation.run(PLAIN + more, *DRA, "--set", "count=3")
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    for size in (2, 3):
        text = f"a claim of {size} devices is refused: one widget is enough for a container\n"
        assert text in result.stdout


@pytest.mark.slow
def test_with_no_device_that_a_claim_can_have_no_pod_is_tried(simulation: Simulation) -> None:
    more = "def discover(self): return [kdp.Device(id='w', health=kdp.Health.unhealthy('worn'))]"
    result = simulation.run(more, *DRA, "--format", "json", "--lenient")
    assert result.returncode == 0, result.stdout + result.stderr
    told = {each["event"]: each for each in lines(result)}
    assert told["published"]["tainted"] == 1
    assert "pod_skipped" in told
    assert "claim_prepared" not in told


@pytest.mark.slow
def test_a_wrong_configuration_is_the_drivers_own_sentence(simulation: Simulation) -> None:
    result = simulation.run("", *DRA, "--registration", "watcher")
    assert result.returncode == 2
    assert "only a device plugin has it, and the mode is dra" in result.stderr
    assert result.stdout == ""


@pytest.mark.slow
def test_interrupted_it_leaves_nothing(simulation: Simulation) -> None:
    with simulation.running(PLAIN, *DRA) as (process, driver):
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
        with pytest.raises(ProcessLookupError):
            os.kill(driver, 0)
