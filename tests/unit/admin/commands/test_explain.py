from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kdp.command.app import kdp

TARGET = """
import kdp

class Gpus(kdp.DeviceBackend):
    resource = "example.com/gpu"

    def discover(self):
        sick = kdp.Health.unhealthy("XID 79")
        return [kdp.Device(id=f"gpu-{i}", health=sick if i == 4 else kdp.Health.healthy()) for i in range(5)]

    def links(self, devices):
        return {("gpu-0", "gpu-3"): 50, ("gpu-0", "gpu-4"): 99}

class Plain(kdp.DeviceBackend):
    def discover(self):
        return [kdp.Device(id=name, resource=f"example.com/{name[0]}") for name in ("a0", "a1", "b0")]

class Broken(Gpus):
    def links(self, devices):
        return {("gpu-0", "gpu-1"): -1}

class Odd(Gpus):
    def links(self, devices):
        return [[0, 1], [1, 0]]

class Sick(Plain):
    def discover(self):
        health = kdp.Health.unhealthy("it smokes")
        return [kdp.Device(id=d.id, resource="example.com/a", health=health) for d in super().discover()]

class Partitions(Gpus):
    def discover(self):
        return [*super().discover(), kdp.Device(id="part-0", exists=False)]

class Typo(Gpus):
    policy = "best"
"""


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "gpus.py").write_text(TARGET)

    def invoke(name: str, *arguments: str) -> Result:
        return CliRunner().invoke(kdp, ["explain", f"{tmp_path}/gpus.py:{name}", *arguments], prog_name="kdp")

    return invoke


def test_it_says_which_and_why(run: Run) -> None:
    result = run("Gpus", "--size", "2")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].startswith("gpu-0, gpu-3: 2 of 4, by policy linked; nothing is better; ")
    assert [line.split() for line in lines[1:3]] == [
        ["OBJECTIVE", "CHOSEN", "RUNNER-UP"],
        ["devices", "gpu-0,gpu-3", "gpu-1,gpu-2"],
    ]
    assert "bottleneck  50" in result.output


def test_it_says_so_to_programs(run: Run) -> None:
    result = run("Gpus", "--size", "1", "--available", "gpu-3,gpu-1", "--format", "json")
    told = json.loads(result.output)
    assert told.pop("milliseconds") >= 0
    assert told == {
        "chosen": ["gpu-1"],
        "proven": True,
        "objective": {"bottleneck": None, "total": 0, "numa_nodes": 0, "harm": 0},
        "runner_up": {
            "chosen": ["gpu-3"],
            "objective": {"bottleneck": None, "total": 0, "numa_nodes": 0, "harm": 0},
        },
        "policy": "linked",
    }


def test_replicas_are_chosen_as_they_are_served(run: Run) -> None:
    result = run("Gpus", "--size", "2", "--replicas", "2", "--replica-placement", "distinct")
    assert result.output.startswith("gpu-0::0, gpu-3::0: 2 of 8, by policy distinct-linked")


def test_a_resource_is_named_where_there_are_several(run: Run) -> None:
    assert (
        "--resource: must be given, as the devices are of several"
        in run("Plain", "--size", "1", "--policy", "first").output
    )
    result = run("Plain", "--size", "1", "--policy", "first", "--resource", "example.com/b")
    assert result.output.startswith("b0: 1 of 1, by policy first")
    result = run("Plain", "--size", "1", "--policy", "first", "--resource", "example.com/c")
    assert "there are no devices of it; those with devices: example.com/a, example.com/b" in result.output


@pytest.mark.parametrize(
    ("name", "arguments", "code", "what"),
    [
        ("Plain", ["--size", "1"], 2, "it has no policy, so the kubelet chooses; give one, as --policy linked"),
        ("Gpus", ["--size", "5"], 2, "size 5: only 4 devices are available"),
        ("Gpus", ["--size", "1", "--available", "gpu-9"], 2, "available 'gpu-9': there is no such device"),
        ("Gpus", ["--size", "1", "--replicas", "0"], 2, "--replicas: '0' must be a whole number from 1 to 1000"),
        ("Typo", ["--size", "1"], 2, "Typo.policy: policy 'best': must be one of first"),
        ("Broken", ["--size", "1"], 1, "links() of Broken: link 'gpu-0' to 'gpu-1': -1 must be a finite number"),
    ],
)
def test_what_is_wrong_is_told(run: Run, name: str, arguments: list[str], code: int, what: str) -> None:
    result = run(name, *arguments)
    assert what in result.output
    assert result.exit_code == code


def test_a_partition_that_is_still_to_be_made_was_chosen(run: Run) -> None:
    done = run("Partitions", "--size=1", "--available=part-0")
    assert done.exit_code == 2
    assert "there is no such device" in done.stderr
    assert "of 4, by policy" in run("Partitions", "--size=4").stdout
