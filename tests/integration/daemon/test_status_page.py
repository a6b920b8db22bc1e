"""What happened on a node is in its plugin's status, and on the page that a command makes of it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from kdp.command.asking import ask
from kdp.testing import AdmissionError, Pod, SimulatedKubelet
from kdp_testkit.patience import PATIENCE

from ..fetching import fetch
from .conftest import started

Start = Callable[..., AbstractAsyncContextManager[Any]]

RESOURCE = "example.com/gpu"

PROGRAM = """
import pathlib
import kdp

HERE = pathlib.Path(__file__).parent

class Gpus(kdp.DeviceBackend):
    resource = "example.com/gpu"
    policy = "linked"

    def discover(self):
        return [kdp.Device(id=f"gpu-{i}", numa_nodes=[i // 2]) for i in range(4)]

    def links(self, devices):
        return {("gpu-0", "gpu-1"): 50, ("gpu-2", "gpu-3"): 50}

    def watch(self, report):
        is_ill = False
        while not report.stopping.wait(0.02):
            if (HERE / "ill").exists() != is_ill:
                is_ill = not is_ill
                if is_ill:
                    report.fault("gpu-3", "XID 79", kind="xid")
                else:
                    report.clear("gpu-3", kind="xid")

    def allocate(self, devices):
        if (HERE / "refuse").exists():
            raise kdp.AllocationError("not today")
        return devices.edits()

if __name__ == "__main__":
    kdp.run(Gpus())
"""


class Watcher:
    """Asks a plugin for its status until it says something."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "own.sock"

    async def document(self) -> dict[str, Any]:
        code, text = await to_thread.run_sync(ask, str(self.socket), "/status.json")
        found: dict[str, Any] = json.loads(text) if code == 0 else {"events": [], "ready": False}
        return found

    async def until(self, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        found: object = None
        with anyio.move_on_after(PATIENCE):
            while True:
                found = await self.document()
                assert isinstance(found, dict)
                if condition(found):
                    return found
                await anyio.sleep(0.1)
        raise AssertionError(f"the status did not become as expected; it is:\n{json.dumps(found, indent=1)}")

    async def happened(self, kind: str, text: str = "", *devices: str, times: int = 1) -> None:
        """Wait for an event."""
        await self.until(
            lambda found: (
                sum(
                    each["kind"] == kind and text in each["text"] and each["devices"] == list(devices)
                    for each in found["events"]
                )
                >= times
            )
        )


def command(socket: Path, *arguments: str) -> tuple[str, ...]:
    return "-m", "kdp", "status", "--socket", str(socket), *arguments


async def page_of(socket: Path) -> str:
    """Return the page as a file."""
    done = await anyio.run_process([sys.executable, *command(socket, "--format", "html")], check=False)
    return done.stdout.decode()


async def test_what_happens_on_the_node_is_on_the_page(start: Start, kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    async with start(PROGRAM, KDP_NODE_NAME="n1", KDP_SOCKET=str(watcher.socket)) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 4})
        await watcher.happened("started", "kdp ")
        await watcher.happened("registered", "devices: 4, healthy: 4")
        admitted = await kubelet.admit(Pod.asking({RESOURCE: 2}, name="train-0"))
        devices = sorted(admitted.devices(RESOURCE))
        await watcher.happened("allocated", "as the policy preferred", *devices)
        await watcher.happened("held", "by default/train-0 (main)", *devices)
        await kubelet.admit(rest := Pod.asking({RESOURCE: 2}, name="rest"))
        others = sorted({"gpu-0", "gpu-1", "gpu-2", "gpu-3"} - {*devices})
        await watcher.happened("allocated", "as the policy preferred", *others)

        (tmp_path / "ill").touch()
        await watcher.happened("fault", "now Unhealthy (XID 79)", "gpu-3")
        (tmp_path / "ill").unlink()
        await watcher.happened("recovered", "now Healthy", "gpu-3")

        await kubelet.delete(rest)
        (tmp_path / "refuse").touch()
        with pytest.raises(AdmissionError, match="not today"):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await watcher.until(
            lambda found: [e for e in found["events"] if e["kind"] == "refused" and e["text"] == "not today"]
        )

        await kubelet.stop()
        await watcher.until(lambda found: [e for e in found["events"] if e["kind"] == "disconnected"])
        await kubelet.start()
        await kubelet.readmit()
        await watcher.happened("kubelet restarted")
        await watcher.happened("registered", "devices: 4, healthy: 4", times=1)
        plugin.process.send_signal(signal.SIGHUP)
        await watcher.happened("reloaded", "discovering again")

        found = await watcher.until(lambda found: found["ready"])
        assert (found["node"], found["kubelet"]["state"], found["kubelet"]["restarts"]) == ("n1", "listening", 1)
        assert found["kubelet"]["since"] is not None
        assert {tuple(each["units"]): each["weight"] for each in found["backends"][0]["links"]} == {
            ("gpu-0", "gpu-1"): 50,
            ("gpu-2", "gpu-3"): 50,
        }
        page = await page_of(watcher.socket)
        for text in ("Devices of ", "default/train-0 (main)", "NUMA 1", "Kubelet restarted", "XID 79", "<svg"):
            assert text in page
        assert (await plugin.stop())[0] == 0


async def test_events_outlive_a_changed_configuration(start: Start, kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    config, watcher = tmp_path / "kdp.yaml", Watcher(tmp_path)
    config.write_text('http: "127.0.0.1:0"\n')
    source = PROGRAM.partition("if __name__")[0]
    async with start(source, "Gpus", "--config", str(config), KDP_SOCKET=str(watcher.socket)) as plugin:
        await kubelet.until(streaming=RESOURCE)
        await watcher.happened("registered", "devices: 4")
        config.write_text('http: "127.0.0.1:0"\npolicy: packed\nreplicas: 2\n')
        plugin.process.send_signal(signal.SIGHUP)
        await plugin.says("health probes at", times=2)
        await watcher.happened("reloaded", "the configuration was read again")
        await watcher.happened("registered", "devices: 8")
        await watcher.happened("registered", "devices: 4")
        config.write_text("no-such-key: 1\n")
        plugin.process.send_signal(signal.SIGHUP)
        await watcher.until(lambda found: [each for each in found["events"] if each["kind"] == "rejected"])
        assert "and an earlier one is used" in await page_of(watcher.socket)


async def test_the_network_gets_no_status(start: Start, kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    async with start(PROGRAM, KDP_HTTP="127.0.0.1:0", KDP_SOCKET=str(tmp_path / "own.sock")) as plugin:
        await kubelet.until(streaming=RESOURCE)
        found = {path: (await plugin.asked(path))[0] for path in ("/", "/page.json", "/status.json", "/livez")}
    assert found == {"/": 404, "/page.json": 404, "/status.json": 403, "/livez": 200}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_command_serves_the_page_until_it_is_interrupted(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, number: signal.Signals
) -> None:
    socket = tmp_path / "own.sock"
    async with start(PROGRAM, KDP_NODE_NAME="n1", KDP_SOCKET=str(socket)) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 4})
        async with started(*command(socket, "--serve", "127.0.0.1:0")) as serving:
            line = await serving.says("the status page is at http://127.0.0.1:")
            url = line.partition("is at ")[2].partition(" ")[0]
            status, headers, page = await to_thread.run_sync(fetch, url)
            assert (status, headers["X-Content-Type-Options"]) == (200, "nosniff")
            assert "4 of 4 healthy" in page
            await plugin.stop(signal.SIGKILL)

            async def tree() -> str:
                return (await to_thread.run_sync(fetch, f"{url}page.json"))[2]

            with anyio.fail_after(PATIENCE):
                while "The plugin does not answer: " not in (found := await tree()):  # noqa: ASYNC110 - a process
                    await anyio.sleep(0.1)
            assert "gpu-3" in found, "the last status stays"
            assert (await serving.stop(number))[0] == 0
