"""The HTTP listener under attack, in a real process: its memory, its descriptors, and the registration beside it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from kdp.testing import SimulatedKubelet
from kdp_testkit.patience import PATIENCE

from .test_process import RESOURCE, program

Figure = Callable[[str, float, str], None]
Start = Callable[..., AbstractAsyncContextManager[Any]]

MEMORY_LIMIT = 96.0
"""MiB; what the manifests give the container."""

DESCRIPTORS = 128

HEADERS = b"GET /livez HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"a" * 65_000) for n in range(99)) + b"\r\n"

SLOW = """
import selectors, socket, sys, time
port, wanted, until, first = int(sys.argv[1]), int(sys.argv[2]), time.monotonic() + float(sys.argv[3]), sys.argv[4]
held = selectors.DefaultSelector()
opened = began = 0
while time.monotonic() < until:
    for _ in range(min(64, wanted - len(held.get_map()))):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", port))
        held.register(client, selectors.EVENT_READ | (selectors.EVENT_WRITE if first else 0))
        opened += 1
    for key, events in held.select(0.01):
        if events & selectors.EVENT_WRITE:
            try:
                key.fileobj.send(first.encode().decode("unicode_escape").encode())
                held.modify(key.fileobj, selectors.EVENT_READ)
            except OSError:
                events = selectors.EVENT_READ
        if events & selectors.EVENT_READ:
            held.unregister(key.fileobj)
            key.fileobj.close()
    if not began and opened >= wanted:
        began = 1
        print("attacking", flush=True)
"""
"""Holds so many connections and opens a new one for each that is closed, for so long; each says something first."""


def memory_peak(pid: int) -> float:
    """Return a process's peak of resident memory in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextmanager
def slow_clients(port: int, number: int, *, seconds: float, first: str = "") -> Iterator[None]:
    """Have so many clients that say what is given, and then nothing."""
    arguments = [sys.executable, "-c", SLOW, str(port), str(number), str(seconds), first]
    attacker = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    assert attacker.stdout is not None
    try:
        assert attacker.stdout.readline() == b"attacking\n"
        yield
    finally:
        attacker.kill()
        attacker.wait()
        attacker.stdout.close()


@asynccontextmanager
async def listening(start: Start, kubelet: SimulatedKubelet) -> AsyncIterator[tuple[Any, str]]:
    """Run a registered plugin with few descriptors; give its process and its URL."""
    async with start(program(), "W", "--http=127.0.0.1:0", KDP_LOG_FORMAT="json") as plugin:
        await kubelet.until(allocatable={RESOURCE: 2})
        url = await plugin.url()
        pid = plugin.process.pid
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        yield plugin, url
        assert (await plugin.stop())[0] == 0


async def test_six_http_connections_killed_the_container(
    start: Start, kubelet: SimulatedKubelet, figure: Figure
) -> None:
    def send(port: int) -> list[socket.socket]:
        clients = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(6)]
        for client in clients:
            with contextlib.suppress(OSError):  # it hangs up on them, as it should
                client.sendall(HEADERS)
        for client in clients:
            with contextlib.suppress(OSError):
                client.recv(100)
        return clients

    async with listening(start, kubelet) as (plugin, url):
        clients = await to_thread.run_sync(send, int(url.rpartition(":")[2]))
        peak = memory_peak(plugin.process.pid)
        for client in clients:
            client.close()
        figure("peak of memory with six clients of 6 MiB each", peak, "MiB")
        assert peak < MEMORY_LIMIT
        assert await plugin.asked("/livez") == (200, "ok\n")


async def test_clients_that_hold_connections_starved_the_registration(
    start: Start, kubelet: SimulatedKubelet, figure: Figure
) -> None:
    async with listening(start, kubelet) as (plugin, url):
        pid = plugin.process.pid
        await kubelet.crash()
        with slow_clients(int(url.rpartition(":")[2]), 600, seconds=60, first="GET /livez HTTP/1.1\\r\\nx: "):
            before, began = cpu_seconds(pid), time.monotonic()
            await kubelet.start()
            with anyio.fail_after(PATIENCE):
                await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})
            took = time.monotonic() - began
            with anyio.fail_after(PATIENCE):
                while (await plugin.asked("/readyz"))[0] != 200:  # noqa: ASYNC110 - another process is asked
                    await anyio.sleep(0.01)
            share = (cpu_seconds(pid) - before) / (time.monotonic() - began)
            open_now, peak = descriptors(pid), memory_peak(pid)
        figure("registered again under attack after", took * 1000, "ms")
        figure("CPU of the plugin under attack", share * 100, "%")
        assert open_now < DESCRIPTORS - 32
        assert peak < MEMORY_LIMIT


async def test_a_process_without_descriptors_span_in_accept(
    start: Start, kubelet: SimulatedKubelet, figure: Figure
) -> None:
    """A connection that cannot be accepted is tried again once a second; later it is answered."""
    async with listening(start, kubelet) as (plugin, url):
        pid = plugin.process.pid
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, DESCRIPTORS))
        host, port = url.removeprefix("http://").rsplit(":", 1)
        with socket.create_connection((host, int(port)), 10) as client:
            client.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            await plugin.says("no connection to the health probes can be accepted: Too many open files")
            before = cpu_seconds(pid)
            await anyio.sleep(1.5)  # the time itself is the point
            used = cpu_seconds(pid) - before
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
            assert (await to_thread.run_sync(client.recv, 15)) == b"HTTP/1.0 200 OK"
        figure("CPU in 1.5 s without a free descriptor", used * 1000, "ms")
        assert used < 0.5
        assert plugin.log.count("can be accepted") == 1


# The unix socket ------------------------------------------------------------------------------------------------------


async def probed(what: str, **environment: str) -> tuple[int, str]:
    """Run the command of an exec probe."""
    command = [sys.executable, "-m", "kdp", "probe", what]
    done = await anyio.run_process(command, env={**os.environ, **environment}, check=False)
    return done.returncode, done.stdout.decode() + done.stderr.decode()


async def until_probed(what: str, code: int, **environment: str) -> str:
    """Run it until it ends with this exit code, and return what it said."""
    with anyio.fail_after(PATIENCE):
        while True:
            found, said = await probed(what, **environment)
            if found == code:
                return said


async def test_an_exec_probe_asks_the_living_plugin(start: Start, kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    socket_path = tmp_path / "plugin.sock"
    by_path = {"KDP_SOCKET": str(socket_path)}
    async with start(program(), KDP_SOCKET=str(socket_path)) as plugin:
        said = await until_probed("ready", 0, **by_path)
        assert json.loads(said)["resources"][RESOURCE]["state"] == "connected"
        assert await probed("live", **by_path) == (0, "ok\n")
        await kubelet.crash()
        await until_probed("ready", 1, **by_path)
        assert await probed("live", **by_path) == (0, "ok\n")
        assert (await plugin.stop())[0] == 0
    assert not socket_path.exists()
    assert (await probed("live", **by_path))[0] == 1
