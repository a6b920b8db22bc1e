from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kdp
import kdp_example_minimal


def test_each_of_ten_containers_may_have_the_fuse_device() -> None:
    devices = kdp_example_minimal.Fuse().discover()

    assert [device.id for device in devices] == [f"fuse-{i}" for i in range(10)]
    assert {node.host_path for device in devices for node in device.edits.device_nodes} == {"/dev/fuse"}


def test_one_container_may_have_several_and_gets_the_node_once() -> None:
    devices = kdp_example_minimal.Fuse().discover()

    edits = kdp.ContainerEdits.merge((device.id, device.edits) for device in devices)

    assert edits == kdp.ContainerEdits.of_node("/dev/fuse")


def test_the_readme_shows_what_the_command_prints() -> None:
    if not Path("/dev/fuse").exists():
        pytest.skip("this kernel has no /dev/fuse")
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    command, _, expected = readme.partition("$ kdp devices ")[2].partition("```")[0].partition("\n")

    done = subprocess.run(
        [Path(sys.executable).with_name("kdp"), "devices", *command.split()], check=True, capture_output=True, text=True
    )

    assert [line.rstrip() for line in done.stdout.splitlines()] == expected.splitlines()
