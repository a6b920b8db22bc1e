"""What the tests of recording and replaying share."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from typing_extensions import override

import kdp
from kdp.kubelet import KubeletPaths
from kdp.testing import SimulatedKubelet
from kdp_testkit.recording import Recorder, Redaction, Writer

RESOURCE = "example.com/widget"


class Widgets(kdp.DeviceBackend):
    """Two devices that a container is told of by a variable."""

    resource = RESOURCE

    def __init__(self, count: int = 2, color: str = "blue") -> None:
        self.count = count
        self.color = color
        self.faulty: set[str] = set()
        self.reporter: kdp.Reporter | None = None

    @override
    def discover(self) -> list[kdp.Device]:
        return [
            kdp.Device(
                id=name,
                health=kdp.Health.unhealthy("broken") if name in self.faulty else kdp.Health.healthy(),
                numa_nodes=[0],
                edits=kdp.ContainerEdits(env={f"WIDGET_{name}": self.color}),
            )
            for name in (f"w{number}" for number in range(self.count))
        ]

    @override
    def watch(self, report: kdp.Reporter) -> None:
        self.reporter = report
        report.stopping.wait()


def text_of(file: Path) -> str:
    return file.read_text()


def put(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def exists(path: str | Path) -> bool:
    return Path(path).exists()


class Recording:
    """A recorder in front of a simulated kubelet, and what it has written."""

    def __init__(self, recorder: Recorder, paths: KubeletPaths, file: Path) -> None:
        self.recorder = recorder
        self.paths = paths
        self.file = file

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def of(self, what: str, method: str | None = None) -> list[dict[str, Any]]:
        """The lines of a kind; answers and ends of a method, too."""
        numbers = {line["call"] for line in self.lines if method and line.get("method") == method}
        return [line for line in self.lines if line.get("what") == what and (not method or line["call"] in numbers)]


@asynccontextmanager
async def recording(
    kubelet: SimulatedKubelet, directory: Path, *, redact: Collection[str] = ()
) -> AsyncIterator[Recording]:
    """Record into ``recording.jsonl`` of this directory."""
    file = directory / "recording.jsonl"
    # Beside the kubelet's own directory, because a socket's whole path has 107 bytes.
    paths = KubeletPaths.simulated(kubelet.paths.device_plugin_dir.parent / "shadow")
    writer = Writer(file, redaction=Redaction(redact), profile=kubelet.profile.name)
    async with Recorder(writer, kubelet=kubelet.paths, plugin=paths) as recorder:
        yield Recording(recorder, paths, file)
