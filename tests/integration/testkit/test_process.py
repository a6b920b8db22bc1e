"""The simulated kubelet as a process of its own, killed and started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import anyio
import pytest

from kdp.kubelet.paths import KubeletPaths
from kdp_testkit.patience import PATIENCE

from .bare_plugin import RESOURCE, BarePlugin
from .test_lifecycle import connects


class Process:
    """One process, its events in a queue."""

    def __init__(self, root: Path, *arguments: str) -> None:
        self.paths = KubeletPaths.simulated(root)
        self._events: Queue[dict[str, Any]] = Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kdp_testkit.process", "--root", str(root), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))

    async def next(self, name: str) -> dict[str, Any]:
        """Return the next event of this name; others before it are passed over."""
        while True:
            event = await anyio.to_thread.run_sync(lambda: self._events.get(timeout=PATIENCE))
            if event["event"] == name:
                return event

    def say(self, operation: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"op": operation, "id": operation, **arguments}).encode() + b"\n")
        self.process.stdin.flush()

    async def do(self, operation: str, **arguments: Any) -> dict[str, Any]:
        self.say(operation, **arguments)
        reply = await self.next("reply")
        assert reply["id"] == operation
        return reply

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


@contextmanager
def running(root: Path, *arguments: str) -> Iterator[Process]:
    process = Process(root, *arguments)
    try:
        yield process
    finally:
        process.end()


@pytest.fixture
async def plugin(tmp_path: Path) -> AsyncIterator[BarePlugin]:
    directory = tmp_path / "device-plugins"
    directory.mkdir()
    bare = BarePlugin(directory)
    yield bare
    await bare.stop()


async def test_a_killed_kubelet_leaves_a_dead_socket_and_the_next_one_remembers(
    tmp_path: Path, plugin: BarePlugin
) -> None:
    pod = {"name": "p", "uid": "u1", "containers": [{"name": "main", "limits": {RESOURCE: 1}}]}
    with running(tmp_path) as first:
        listening = await first.next("listening")
        await plugin.serve()
        assert await plugin.register(first.paths.kubelet_socket) is None
        registered = await first.next("registered")
        assert registered["t"] > listening["t"]
        assert (await first.do("wait", allocatable={RESOURCE: 2}))["ok"]
        admitted = await first.do("admit", pod=pod)
        assert admitted["ok"], admitted
        [device] = admitted["containers"]["main"]["devices"][RESOURCE]
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        assert connects(first.paths.kubelet_socket) == "ConnectionRefusedError"
        await plugin.until(lambda: plugin.streams == 0)
        assert plugin.path.exists()

    with running(tmp_path, "--profile", "k136", "--start-delay", "0.1") as second:
        await second.next("listening")
        assert not plugin.path.exists(), "wiped at the start"
        assert (await second.do("state"))["capacity"] == {RESOURCE: 0}
        await plugin.stop()
        await plugin.serve()
        assert await plugin.register(second.paths.kubelet_socket) is None
        assert (await second.do("wait", streaming=RESOURCE))["ok"]
        again = await second.do("admit", pod=pod)
        assert again["containers"] == admitted["containers"]
        assert [name for name, _ in plugin.calls].count("allocate") == 1
        assert (await second.do("in_use", resource=RESOURCE))["device_ids"] == [device]


async def test_operations_answer_and_refuse_in_sentences(tmp_path: Path, plugin: BarePlugin) -> None:
    with running(tmp_path, "--seed", "1", "--checkpoint-noise", "50") as process:
        await process.next("listening")
        await plugin.serve()
        assert await plugin.register(process.paths.kubelet_socket) is None
        assert (await process.do("wait", streaming=RESOURCE))["ok"]
        assert (await process.do("devices", resource=RESOURCE))["devices"] == plugin.devices
        assert (await process.do("node_status"))["capacity"] == {RESOURCE: 2}
        assert (await process.do("options", resource=RESOURCE))["pre_start_required"] is False
        replies = (await process.do("allocate", resource=RESOURCE, containers=[["w0"], ["w1"]]))["replies"]
        assert [reply["envs"] for reply in replies] == [{"WIDGETS": "w0"}, {"WIDGETS": "w1"}]
        refused = await process.do("allocate", resource=RESOURCE, containers=[["w9"]])
        assert (refused["ok"], refused["message"]) == (
            False,
            "rpc error: code = InvalidArgument desc = unknown device w9",
        )
        pod = {"uid": "u", "name": "p", "containers": [{"name": "main", "limits": {RESOURCE: 9}}]}
        rejected = await process.do("admit", pod=pod)
        assert rejected["reason"] == "UnexpectedAdmissionError"
        assert (await process.do("nonsense"))["message"] == "there is no operation 'nonsense'"
        assert (await process.do("fault", name="nonsense"))["message"] == "there is no fault 'nonsense'"
        assert (await process.do("fault", name="refuse_register", text="no"))["ok"]
        assert await plugin.register(process.paths.kubelet_socket) == "UNKNOWN: no"
        assert (await process.do("fault", name="wipe_sockets"))["ok"]
        assert not plugin.path.exists()
        assert (await process.do("drop_stream", resource=RESOURCE))["ok"]
        assert (await process.next("disconnected"))["resource"] == RESOURCE
        assert (await process.do("restart"))["ok"]
        assert (await process.do("stop"))["ok"]
        assert (await process.do("state"))["running"] is False
        assert (await process.do("delete", pod="nobody"))["message"] == "there is no pod 'nobody' on this node"
        assert process.process.stdin is not None
        process.process.stdin.close()
        assert await anyio.to_thread.run_sync(lambda: process.process.wait(20)) == 0, "the end of stdin is its end"


async def test_a_fault_that_takes_its_time_was_told_done_and_never_began(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        await process.next("listening")
        process.say("fault", name="restart_storm", times=1)
        await process.next("kubelet_stopped")
        await process.next("listening")
        assert (await process.next("reply"))["ok"]


def test_without_stdin_it_runs_until_it_is_told(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kdp_testkit.process", "--root", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert json.loads(line)["event"] == "listening"
        assert process.poll() is None
        process.terminate()
    assert process.returncode == 0
    assert connects(KubeletPaths.simulated(tmp_path).kubelet_socket) == "ConnectionRefusedError"
