"""``kdp status`` of a real process: it shows what the process serves, and takes little memory for it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio

from kdp.testing import Pod, SimulatedKubelet
from kdp_testkit.patience import PATIENCE

from ..faults.test_process import needs_mounts

Start = Callable[..., AbstractAsyncContextManager[Any]]
Figure = Callable[[str, float, str], None]

RESOURCE = "example.com/widget"

PROGRAM = """
from pathlib import Path
import kdp, time

HERE = Path(__file__).parent


class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"
    poll_interval = 0.05

    def discover(self):
        (HERE / "looks").open("a").write("x")
        return [kdp.Device(id=f"w{n}", edits=kdp.ContainerEdits.of_node("/dev/null")) for n in range(2)]

    def watch(self, report):
        while not (HERE / "go").exists():
            time.sleep(0.01)
        report.fault("w1", "XID 79", kind="xid")
        report.stopping.wait()


if __name__ == "__main__":
    kdp.run(Widgets())
"""

MEMORY = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def _environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "KDP_STATE_DIR": str(tmp_path / "state")}


async def status(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "kdp", "status", "--state-dir", str(tmp_path / "state"), *arguments]
    done = await anyio.run_process(command, check=False)
    return done.returncode, done.stdout.decode()


async def test_kdp_devices_contradicted_the_living_plugin(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """A look of its own found the GPU Healthy that the plugin had reported with an XID. The plugin is asked now."""
    async with start(PROGRAM):
        await kubelet.until(allocatable={RESOURCE: 2})
        await kubelet.admit(Pod.asking({RESOURCE: 1}, name="p"))
        (tmp_path / "go").touch()
        await kubelet.until(allocatable={RESOURCE: 1})
        code, text = await status(tmp_path, "--format", "json")
        found = json.loads(text)
        assert (code, found["ready"]) == (0, True)
        [one] = found["resources"]
        assert (one["name"], one["state"], one["devices"], one["healthy"]) == (RESOURCE, "connected", 2, 1)
        health = {device["id"]: (device["health"], device["reason"]) for device in one["listed"]}
        assert health == {"w0": ("Healthy", None), "w1": ("Unhealthy", "XID 79")}
        code, text = await status(tmp_path)
        assert code == 0
        assert "XID 79" in text
        program = f"{tmp_path / 'plugin.py'}:Widgets"
        devices = [sys.executable, "-m", "kdp", "devices", program]
        asked = await anyio.run_process(devices, env=_environment(tmp_path))
        assert "XID 79" in asked.stdout.decode()
        assert "the running plugin was asked" in asked.stdout.decode()
        looked = await anyio.run_process([*devices, "--discover"], env=_environment(tmp_path))
        assert "XID 79" not in looked.stdout.decode()


async def test_three_looks_at_once_killed_the_plugin(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, figure: Figure
) -> None:
    """Each took 70 of the pod's 96 MiB. The command loads neither gRPC nor a table library nor an event loop now."""
    async with start(PROGRAM):
        await kubelet.until(allocatable={RESOURCE: 2})
        command = [sys.executable, "-m", "kdp", "status", "--state-dir", str(tmp_path / "state")]
        loaded = await anyio.run_process([command[0], "-X", "importtime", *command[1:]], check=False)
        modules = {line.rpartition("|")[2].strip() for line in loaded.stderr.decode().splitlines()}
        assert not modules & {"grpc", "rich", "asyncio", "yaml", "anyio"}
        measured = await anyio.run_process([sys.executable, "-c", MEMORY, *command])
        code, kib = measured.stdout.split()
        assert code == b"0"
        figure("kdp status: largest resident set", int(kib) / 1024, "MiB")


async def test_kdp_devices_opened_the_hardware_beside_a_living_plugin(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, figure: Figure
) -> None:
    """It took 46.8 MiB and loaded the vendor's class. The plugin tells what it lists, and nobody else looks."""
    async with start(PROGRAM):
        await kubelet.until(allocatable={RESOURCE: 2})
        (tmp_path / "cards.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w')\n{PROGRAM}")
        options = ["--state-dir", str(tmp_path / "state")]
        command = [sys.executable, "-m", "kdp", "devices", f"{tmp_path / 'cards.py'}:Widgets", *options]
        loaded = await anyio.run_process([command[0], "-X", "importtime", *command[1:]])
        modules = {line.rpartition("|")[2].strip() for line in loaded.stderr.decode().splitlines()}
        assert not modules & {"grpc", "rich", "asyncio", "yaml", "anyio", "cattrs", "importlib.metadata"}
        assert not (tmp_path / "loaded").exists()
        measured = await anyio.run_process([sys.executable, "-c", MEMORY, *command])
        code, kib = measured.stdout.split()
        assert code == b"0"
        figure("kdp devices beside a living plugin: largest resident set", int(kib) / 1024, "MiB")
        without_target = [*command[:4], *options, "--format", "json"]
        found = json.loads((await anyio.run_process(without_target)).stdout)
        assert [each["id"] for each in found["resources"][RESOURCE]] == ["w0", "w1"]
        assert found["plugins"][0]["ready"] is True


BLOCKING = """
from pathlib import Path
import kdp, time

HERE = Path(__file__).parent


class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"
    poll_interval = 0.05

    async def discover(self):
        while (HERE / "block").exists():
            time.sleep(0.01)
        return [kdp.Device(id="w0")]


if __name__ == "__main__":
    kdp.run(Widgets())
"""


async def test_a_blocked_event_loop_left_the_status_empty(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    async with start(BLOCKING):
        await kubelet.until(allocatable={RESOURCE: 1})
        assert (await status(tmp_path))[0] == 0
        (tmp_path / "block").touch()
        found: dict[str, Any] = {}
        with anyio.fail_after(PATIENCE):
            while found.get("as_of") is None:
                found = json.loads((await status(tmp_path, "-o", "json"))[1])
        assert found["ready"] is False
        assert found["reason"].endswith("a hook of the backend blocks it")
        assert [each["id"] for each in found["resources"][0]["listed"]] == ["w0"]
        code, text = await status(tmp_path)
        assert (code, f"all else is as it was at {found['as_of']}" in text) == (1, True)
        (tmp_path / "block").unlink()


async def test_a_state_directory_that_is_missing_was_in_the_log_only(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    own = tmp_path / "own.sock"
    async with start(PROGRAM, KDP_SOCKET=str(own)):
        await kubelet.until(allocatable={RESOURCE: 2})
        (tmp_path / "state").rename(tmp_path / "away")
        command = [sys.executable, "-m", "kdp", "status", "--socket", str(own), "-o", "json"]
        found: dict[str, Any] = {}
        with anyio.fail_after(PATIENCE):
            while not found.get("state_dir"):
                await anyio.sleep(0.5)  # each question is a process
                found = json.loads((await anyio.run_process(command)).stdout)
        assert found["ready"] is True
        assert "there is no such directory; a restart forgets" in found["state_dir"]
        probed = await anyio.run_process([*command[:3], "probe", "ready", "--socket", str(own)])
        assert json.loads(probed.stdout)["state_dir"] == found["state_dir"]


@needs_mounts
async def test_a_state_directory_that_is_full_is_said_and_comes_back(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """A real file system without a free inode. The pods of the node start all the same."""
    state = tmp_path / "state"
    state.mkdir()
    # The file system's root takes one of them.
    fill = f"mount -t tmpfs -o nr_inodes=4 none {state} && touch {state}/1 {state}/2 {state}/3"
    under = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{fill} && exec "$@"', "sh", sys.executable]
    own = tmp_path / "own.sock"
    async with start(PROGRAM, under=under, KDP_SOCKET=str(own)) as plugin:
        await kubelet.until(allocatable={RESOURCE: 2})
        said = await _state_problem(own, is_wanted=True)
        assert said == f"state directory {state}: No space left on device; a restart forgets which pod holds a device"
        await kubelet.admit(Pod.asking({RESOURCE: 1}, name="p"))
        for name in "123":
            os.unlink(f"/proc/{plugin.process.pid}/root{state}/{name}")
        assert await _state_problem(own, is_wanted=False) is None


async def _state_problem(socket: Path, *, is_wanted: bool) -> str | None:
    """Wait until /readyz of a ready plugin tells of its state directory, or no longer does."""
    command = [sys.executable, "-m", "kdp", "probe", "ready", "--socket", str(socket)]
    with anyio.fail_after(PATIENCE):
        while True:
            await anyio.sleep(0.5)  # each question is a process
            found = json.loads((await anyio.run_process(command)).stdout)
            said: str | None = found.get("state_dir")
            if (said is not None) is is_wanted:
                return said
