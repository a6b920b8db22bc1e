"""``kdp record`` and ``kdp replay`` as commands: what they say, their exit codes, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from click.testing import CliRunner

from kdp.command.app import kdp
from kdp.testing import Pod, SimulatedKubelet
from kdp_testkit.patience import PATIENCE
from kdp_testkit.recording import Redaction, Writer, read

from ...deviceplugin.helpers import until
from .helpers import RESOURCE, exists, put, text_of

KDP = [sys.executable, "-m", "kdp"]
OURS = os.getpid()
"""In the command lines of processes that we look for: other tests run beside this one."""

BARE = [sys.executable, str(Path(__file__).parent / "bare_process.py"), "{device_plugins}"]


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[Process]:
    process = await anyio.open_process([*KDP, *arguments], stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def output_of(process: Process) -> str:
    assert process.stdout is not None
    text = b""
    with anyio.fail_after(PATIENCE):
        async for chunk in process.stdout:
            text += chunk
        await process.wait()
    return text.decode()


async def ran(*arguments: str) -> tuple[int, str]:
    """Run the command to its end; return its exit code and all that it printed."""
    with anyio.fail_after(60):
        done = await anyio.run_process([*KDP, *arguments], check=False, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout.decode()


def processes_with(text: str) -> list[str]:
    """The command lines of living processes that have this text in them."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in line:
                found.append(line)
    return found


def of(kubelet: SimulatedKubelet) -> list[str]:
    """Return the options that name this kubelet's directories."""
    directory = kubelet.paths.device_plugin_dir
    return [f"--kubelet-root={directory.parent}", f"--device-plugin-dir={directory}"]


@pytest.fixture
async def recorded(kubelet: SimulatedKubelet, tmp_path: Path) -> Path:
    """A recording that the command made of a program, with a kubelet that was killed."""
    file = tmp_path / "recording.jsonl"
    async with started("record", *of(kubelet), "--output", str(file), "--", *BARE) as process:
        await kubelet.until(allocatable={RESOURCE: 2}, timeout=PATIENCE)
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await kubelet.restart()
        await kubelet.until(allocatable={RESOURCE: 2})
        process.send_signal(signal.SIGINT)
        text = await output_of(process)
        assert process.returncode == 0, text
        assert f"calls of {RESOURCE} in " in text
    await kubelet.until(allocatable={RESOURCE: 0})
    return file


async def test_what_was_recorded_can_be_replayed_and_a_changed_program_is_found_out(recorded: Path) -> None:
    code, text = await ran("replay", str(recorded), "--", *BARE)

    assert code == 0, text
    assert "the plugin answers as recorded: 8 of 8 the same" in text
    recording = read(recorded)
    assert recording.is_whole
    assert [entry.state for entry in recording.entries if entry.what == "plugin"] == ["started", "ended"]

    code, text = await ran("replay", str(recorded), "--format", "json", "--", *BARE, "red")

    report = json.loads(text[: text.rindex("}") + 1])
    assert code == 1
    assert report["same"] is False
    assert report["summary"] == {"same": 7, "different": 1, "not_reached": 0}
    (step,) = [step for step in report["steps"] if step["verdict"] == "different"]
    assert step["what"].startswith(f"Allocate {RESOURCE} (w")
    assert "now 'red'" in step["differences"][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("exit 3", "the plugin ended with exit code 3 although nobody asked it to; played up to line"),
        ("yes floodsOURS >&2", "the plugin did not register within 1 s; played up to line"),
    ],
)
async def test_a_program_that_is_no_plugin_gets_one_sentence(recorded: Path, program: str, sentence: str) -> None:
    code, text = await ran(
        "replay", str(recorded), "--deadline", "1", "--", "/bin/sh", "-c", program.replace("OURS", str(OURS))
    )

    assert code == 1
    (line,) = [line for line in text.splitlines() if sentence in line]
    assert "\n" not in line
    assert len(text) < 60_000
    assert not processes_with(f"yes floods{OURS}")


@pytest.mark.slow
async def test_a_program_that_ignores_sigterm_is_killed_with_its_children(recorded: Path, tmp_path: Path) -> None:
    script = tmp_path / "stubborn.sh"
    script.write_text(
        f"trap '' TERM\nsleep 47121.{OURS} &\nsetsid sleep 47122.{OURS} &\n{sys.executable} {BARE[1]} $1 "
        f"&\nwait\nwait\nsleep 47123.{OURS}\n"
    )
    code, text = await ran("replay", str(recorded), "--deadline", "3", "--", "/bin/sh", str(script), "{device_plugins}")

    assert code == 1
    assert "the plugin was still running 3 s after SIGTERM, so it was killed" in text
    assert "1 of 8 different" in text
    assert not [
        *processes_with(f"sleep 47121.{OURS}"),
        *processes_with(f"sleep 47122.{OURS}"),
        *processes_with(str(script)),
    ]


def refusal(*arguments: str) -> str:
    """Run the command in this process; return the one line with which it is refused."""
    told = CliRunner().invoke(kdp, arguments)
    assert (told.exit_code, told.stdout) == (2, "")
    [line] = told.stderr.splitlines()
    return line


@pytest.mark.slow
def test_what_is_wrong_with_a_file_or_a_program_is_one_sentence(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    writer = Writer(whole, redaction=Redaction(), profile="k137")
    writer.kubelet("listening")
    writer.plugin("started")
    writer.call("plugin", "Register", b"", resource=RESOURCE)
    writer.close()
    cut = put(tmp_path / "cut", text_of(whole)[:-10])

    assert "is cut off after line" in refusal("replay", str(cut), "--", "true")
    assert "cannot be read (No such file or directory)" in refusal("replay", str(tmp_path / "none"), "--", "true")
    told = refusal("replay", str(whole), "--", "/nowhere/plugin")
    assert told == "kdp replay: the program '/nowhere/plugin' cannot be started: No such file or directory"


@pytest.mark.slow
async def test_replaying_can_be_interrupted(recorded: Path) -> None:
    arguments = ("--deadline", "600", "--", "sleep", f"4713.{OURS}")  # which it waited for, and the plugin had ended
    async with started("replay", str(recorded), *arguments) as process:
        await until(lambda: [line for line in processes_with(f"sleep 4713.{OURS}") if line.startswith("sleep")])
        process.send_signal(signal.SIGTERM)
        text = await output_of(process)

    assert (process.returncode, text.strip()) == (1, "kdp replay: interrupted by SIGTERM")


@pytest.mark.slow
async def test_a_program_that_ends_by_itself_ends_the_recording(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    file = tmp_path / "recording.jsonl"
    code, text = await ran(
        "record", *of(kubelet), "--output", str(file), "--", "/bin/sh", "-c", "echo no driver; exit 4"
    )

    assert code == 1
    assert "kdp record: the plugin ended with exit code 4 although nobody asked it to" in text
    assert "no driver" in text
    assert read(file).is_whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--output", "{there}"], "is there already, and is not overwritten; name another file"),
        (["--output", "{new}", "--private-mount"], "--private-mount: there is no COMMAND"),
        (["--output", "{new}", "--plugin-root", "{root}"], "is the kubelet's own directory; name another one"),
    ],
)
def test_what_is_given_wrong_to_record_is_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    root = tmp_path / "kubelet"
    (root / "device-plugins").mkdir(parents=True)
    names = {"{there}": str(tmp_path / "there"), "{new}": str(tmp_path / "new"), "{root}": str(root)}
    there = put(tmp_path / "there", "mine")

    told = refusal(
        "record", f"--device-plugin-dir={root}/device-plugins", *(names.get(word, word) for word in arguments)
    )

    assert sentence in told
    assert text_of(there) == "mine"
    assert not exists(names["{new}"])


@pytest.mark.slow
async def test_without_a_command_plugins_come_and_go_as_they_like(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    file = tmp_path / "recording.jsonl"
    shadow = kubelet.paths.device_plugin_dir.parent / "shadow"
    bare = [word.replace("{device_plugins}", str(shadow / "device-plugins")) for word in BARE]
    async with started(*("record", *of(kubelet), "--output", str(file), "--plugin-root", str(shadow))) as process:
        for _ in range(2):
            await until(lambda: exists(shadow / "device-plugins"))
            plugin = await anyio.open_process(bare)
            await kubelet.until(allocatable={RESOURCE: 2}, timeout=PATIENCE)
            plugin.kill()
            await plugin.wait()
            await plugin.aclose()
            await kubelet.until(allocatable={RESOURCE: 0})
        process.send_signal(signal.SIGTERM)
        text = await output_of(process)

    assert process.returncode == 0, text
    entries = read(file).entries
    assert [entry.code for entry in entries if entry.what == "end" and entry.method == "ListAndWatch"] == [
        "UNAVAILABLE",
        "UNAVAILABLE",
    ]
    code, text = await ran("replay", str(file), "--", *BARE)
    assert code == 0, text
