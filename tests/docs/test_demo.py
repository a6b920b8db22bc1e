"""``make demo``: its figures are measured, its story is true, and it leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from kdp_testkit.patience import PATIENCE

from .blocks import ROOT

pytestmark = pytest.mark.repository

Figure = Callable[[str, float, str], None]


@attrs.frozen
class Told:
    """What a run of the demo has printed."""

    code: int
    story: str
    complaint: str
    seconds: float

    @property
    def figures(self) -> dict[str, list[float]]:
        """The figures of its last part, in milliseconds."""
        _, head, lines = self.story.partition("Measured in this run, in milliseconds\n")
        assert head, self.story + self.complaint
        return {
            name.strip(): [float(value) for value in values.split()]
            for name, values in re.findall(r"^  (\S.*?)  +((?:\d+\.\d *)+)$", lines, re.MULTILINE)
        }

    @property
    def node(self) -> Path:
        """The node of the device that was unplugged."""
        found = re.search(r"whose node is (\S+)$", self.story, re.MULTILINE)
        assert found is not None, self.story + self.complaint
        return Path(found[1])


@contextmanager
def _started(*arguments: str, within: tuple[str, ...] = ()) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*within, sys.executable, "-m", "demo", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def _told(*arguments: str, within: tuple[str, ...] = ()) -> Told:
    start = time.monotonic()
    with _started(*arguments, within=within) as process:
        story, complaint = process.communicate(timeout=2 * PATIENCE)
    return Told(process.returncode, story, complaint, time.monotonic() - start)


def _left_behind(story: str) -> list[str]:
    """Return what a run has left: directories, processes, links, nodes."""
    left: list[str] = []
    for directory in set(re.findall(r"(/tmp/kdp-demo-\w+)/", story)):
        left += [directory] if Path(directory).exists() else []
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = process.read_bytes()
            except OSError:
                continue
            left += [str(process)] if directory.encode() in command else []
    for link in re.findall(r"kdpd(\d+)", story):
        left += [path.name for path in Path("/sys/class/net").glob(f"kdp[bcd]{link}")]
    left += [path for path in set(re.findall(r"/dev/tap\d+", story)) if Path(path).exists()]
    return left


def test_the_demo_tells_its_story_and_leaves_nothing_behind(figure: Figure) -> None:
    told = _told()

    assert told.code == 0, told.story + told.complaint
    assert told.complaint == ""
    assert told.seconds < PATIENCE
    assert _left_behind(told.story) == []
    for sentence in (
        r"all \d+ resources are registered [\d.]+ ms after its start",
        r"the first pod asks for one example\.com/\w+ and gets \S+; admitted after [\d.]+ ms",
        r"\S+ opened: (character|block) device \d+:\d+; ",
        r"unplugged: \S+ is gone; the kubelet is told [\d.]+ ms later\n +example\.com/\w+: capacity 1, allocatable 0",
        r"plugged in again: \S+ is back; the kubelet is told [\d.]+ ms later\n +\S+: capacity 1, allocatable 1",
        r"it has ended with exit code 0 after [\d.]+ ms and left nothing behind",
    ):
        assert re.search(sentence, told.story), sentence
    assert told.story.count("resources are registered again") == 3
    assert {name: len(values) for name, values in told.figures.items()} == {
        "start of the plugin's process -> registered": 1,
        "the first pod asked for a device -> admitted": 1,
        "node gone -> the kubelet is told": 1,
        "kubelet killed -> registered again": 3,
        "kubelet.sock is there -> registered again": 3,
        "kubelet listens -> registered again": 3,
        "node back -> the kubelet is told": 1,
        "the second pod asked for a device -> admitted": 1,
        "asked to stop -> ended": 1,
    }
    for name, values in told.figures.items():
        figure(f"demo: {name}, most", max(values), "ms")
        # Discovery polls once an hour here: what comes within a second was brought by an event.
        assert all(0 < value < 1000 for value in values if "node" in name)
    figure("demo: the whole", told.seconds, "s")


def test_the_demo_needs_no_root() -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "--user", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody make a user namespace")

    told = _told(within=(unshare, "--user"))

    assert told.code == 0, told.story + told.complaint
    assert "macvtap" not in told.story
    assert _left_behind(told.story) == []


def test_an_interrupted_demo_leaves_nothing_behind() -> None:
    with _started() as process:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if "resources are registered" in line:
                process.send_signal(signal.SIGINT)
                break
        rest, complaint = process.communicate(timeout=PATIENCE)

    assert process.returncode == 128 + signal.SIGINT, "".join(lines) + rest + complaint
    assert _left_behind("".join(lines) + rest) == []
