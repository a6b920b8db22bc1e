"""What the page is tried on: a plugin's process on a simulated kubelet, whose devices misbehave on demand."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
import attrs
from anyio import to_thread

from kdp.command.asking import ask
from kdp.testing import SimulatedKubelet
from kdp_testkit.patience import PATIENCE

RESOURCE: Final = "example.com/gpu"


GPUS: Final = """
import pathlib, sys
import kdp

HERE = pathlib.Path(__file__).parent

class Gpus(kdp.DeviceBackend):
    resource = "example.com/gpu"
    policy = "linked"
    poll_interval = 0.2
    measure_interval = 1
    measurements = (
        kdp.Measurement("utilization", unit="ratio", help="Share of time in use."),
        kdp.Measurement("memory_used", unit="bytes", help="Memory in use."),
        kdp.Measurement("temperature", unit="celsius", help="Temperature of the chip."),
        kdp.Measurement("power", unit="watts", help="Power drawn."),
    )

    def discover(self):
        return [kdp.Device(id=f"gpu-{i}", numa_nodes=[i // 4]) for i in range(8)]

    def links(self, devices):
        units = sorted(device.unit for device in devices)
        return {
            (a, b): 50 if i // 2 == j // 2 else 20 if i // 4 == j // 4 else 5
            for i, a in enumerate(units) for j, b in enumerate(units) if i < j
        }

    def watch(self, report):
        ill = set()
        while not report.stopping.wait(0.05):
            for i in range(8):
                name, reason = f"gpu-{i}", HERE / f"ill-{i}"
                if reason.exists() and name not in ill:
                    ill.add(name)
                    report.fault(name, reason.read_text(), kind="xid")
                elif name in ill and not reason.exists():
                    ill.discard(name)
                    report.clear(name, kind="xid")

    def allocate(self, devices):
        if (HERE / "refuse").exists():
            raise kdp.AllocationError((HERE / "refuse").read_text())
        return devices.edits()

    def measure(self):
        return {
            f"gpu-{i}": {
                "utilization": 0.93 - 0.11 * i, "memory_used": (71 - 9 * i) * 2**30,
                "temperature": 71 - 3 * i, "power": 643 - 61 * i,
            }
            for i in range(8)
        }

if __name__ == "__main__":
    kdp.run(Gpus())
"""

SCRIPT: Final = "<script>alert(1)</script>"

HOSTILE: Final = r"""
import kdp

NAMES = [
    "<script>alert(1)</script>",
    "\"><img/src=x/onerror=alert(2)>",
    "'><svg/onload=alert(3)>",
    "&lt;b&gt;</title></style>{0}",
    "</bdi></td></table><iframe/src=javascript:alert(4)>",
    "\u05d0\u05d1\u05d2",
]
REASON = "</bdi><script>alert(5)</script> \"'><iframe src=javascript:alert(6)> \u202eevil\u2066 \x1b[31m"

class Evil(kdp.DeviceBackend):
    resource = "example.com/evil"
    policy = "linked"
    poll_interval = 0.2
    measure_interval = 1
    measurements = (kdp.Measurement("power", unit="watts", help="</script><script>alert(7)</script>"),)

    def discover(self):
        return [
            kdp.Device(
                id=name,
                unit=f"unit \u202e{name}",
                numa_nodes=[i % 2],
                health=kdp.Health.unhealthy(REASON) if i % 2 else kdp.Health.healthy(),
            )
            for i, name in enumerate(NAMES)
        ]

    def links(self, devices):
        units = sorted({device.unit for device in devices})
        return {(units[0], unit): 1.0 for unit in units[1:]}

    def measure(self):
        return {NAMES[0]: {"power": 12.5}}

if __name__ == "__main__":
    kdp.run(Evil())
"""


@attrs.frozen
class Scene:
    """A plugin that runs.

    Attributes:
        kubelet: The simulated kubelet.
        folder: Where the program is; it looks for its orders there.
        url: Where a command serves its page.
        process: The plugin's process.
        serving: The command's process.
    """

    kubelet: SimulatedKubelet
    folder: Path
    url: str
    process: subprocess.Popen[bytes]
    serving: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        """What the plugin has said."""
        return (self.folder / "log").read_text(errors="replace")


@asynccontextmanager
async def scene(folder: Path, source: str, **environment: str) -> AsyncIterator[Scene]:
    """Run a program on a simulated kubelet, and a command that serves its page."""
    program = folder / "plugin.py"
    program.write_text(source)
    async with SimulatedKubelet() as kubelet:
        paths = kubelet.paths
        settings = {
            "KDP_DEVICE_PLUGIN_DIR": str(paths.device_plugin_dir),
            "KDP_PLUGINS_REGISTRY_DIR": str(paths.plugins_registry_dir),
            "KDP_POD_RESOURCES_DIR": str(paths.pod_resources_dir),
            "KDP_PODS_API_DIR": str(paths.pods_api_dir),
            "KDP_STATE_DIR": str(folder / "state"),
            "KDP_SOCKET": str(folder / "own.sock"),
            "KDP_NODE_NAME": "worker-7",
            **environment,
        }
        own = str(folder / "own.sock")
        with _running(folder / "log", str(program), **settings) as process:
            await _until(lambda: ask(own, "/livez")[0] == 0, process, folder / "log")
            command = ("-m", "kdp", "status", "--socket", own, "--serve", "127.0.0.1:0")
            with _running(folder / "page.log", *command) as serving:
                mark = "the status page is at "
                await _until(lambda: mark in _text(folder / "page.log"), serving, folder / "page.log")
                url = _text(folder / "page.log").partition(mark)[2].partition("/ ")[0]
                yield Scene(kubelet, folder, url, process, serving)


@contextmanager
def _running(log: Path, *words: str, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()


async def _until(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not await to_thread.run_sync(condition):
        is_alive = time.monotonic() < until and process.poll() is None
        assert is_alive, f"it does not answer; it said:\n{_text(log)}"
        await anyio.sleep(0.02)


def _text(log: Path) -> str:
    return log.read_text(errors="replace")


async def document(at: Scene) -> str:
    """Return the status document, as the plugin's socket has it."""
    code, text = await to_thread.run_sync(ask, str(at.folder / "own.sock"), "/status.json")
    assert code == 0, text
    return text
