from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("no_living_plugin")

TARGET = """
import os
import kdp

class Many(kdp.DeviceBackend):
    resource = "example.com/many"

    def discover(self):
        return [kdp.Device(id=f"w{i}") for i in range(3000)]

class Noisy(kdp.DeviceBackend):
    resource = "example.com/noisy"
    policy = "first"

    def __init__(self):
        print("made")

    def discover(self):
        print("printed", flush=True)
        os.write(1, b"written\\n")
        return [kdp.Device(id="w0")]

class Foreign(kdp.DeviceBackend):
    resource = "example.com/foreign"

    def discover(self):
        return [kdp.Device(id="w0", health=kdp.Health.unhealthy("d\\xe9faut \\u2603"))]
"""


@pytest.fixture
def devices(tmp_path: Path) -> list[str]:
    (tmp_path / "w.py").write_text(TARGET)
    return [sys.executable, "-m", "kdp", "devices", f"{tmp_path}/w.py:"]


def shell(
    words: list[str], more: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'"$@" {more}', "sh", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | (environment or {}),
    )


@pytest.mark.parametrize(
    ("output", "where", "why"),
    [("json", ">&-", "Bad file descriptor"), ("text", ">/dev/full", "No space left on device")],
)
def test_what_cannot_be_written_is_one_sentence_and_exit_code_1(
    devices: list[str], output: str, where: str, why: str
) -> None:
    devices[-1] += "Many"
    result = shell([*devices, "--format", output], where)
    assert (result.returncode, result.stderr) == (1, f"kdp: stdout cannot be written ({why}); give another place\n")


def test_the_exit_code_is_the_same_where_nobody_can_be_told(devices: list[str]) -> None:
    devices[-1] += "NoSuch"
    assert shell(devices, ">&- 2>&- <&-").returncode == 2


def test_a_reader_who_has_enough_changes_nothing(devices: list[str]) -> None:
    devices[-1] += "Many"
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as broken:
        ended = subprocess.run(
            [*devices, "--format", "text"], check=False, stdout=broken, stderr=subprocess.PIPE, timeout=60
        )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_what_the_vendor_prints_is_not_in_the_document(devices: list[str]) -> None:
    arguments = ["devices"]
    devices[-1] += "Noisy"
    result = shell([*devices[:3], *arguments, devices[-1], "--format", "json"])
    assert result.returncode == 0
    assert json.loads(result.stdout)
    assert result.stderr.splitlines() == ["made", "printed", "written"]


def test_what_stdout_cannot_encode_is_escaped(devices: list[str]) -> None:
    devices[-1] += "Foreign"
    result = shell(devices, environment={"PYTHONIOENCODING": "ascii"})
    assert (result.returncode, result.stderr) == (0, "")
    assert "Unhealthy (d\\xe9faut \\u2603)" in result.stdout


def test_a_pipe_that_does_not_wait_takes_all_of_it(devices: list[str]) -> None:
    """A program that shares its stdout may leave it non-blocking; the rest of a JSON document was a traceback."""
    devices[-1] += "Many"
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    command = [*devices, "--format", "json"]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as process, open(reader, "rb") as read:
        os.close(writer)
        found = read.read()  # much more than a pipe holds
        assert process.stderr is not None
        assert (process.wait(60), process.stderr.read()) == (0, b"")
    assert len(json.loads(found)["resources"]["example.com/many"]) == 3000
