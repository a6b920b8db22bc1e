"""`Child`: a plugin's process under test, what it says, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from kdp.kubelet import KubeletPaths
from kdp_testkit.patience import PATIENCE

from ..deviceplugin.helpers import until

CHILD = Path(__file__).with_name("child.py")


class Child:
    """One process. Its log is read all the time."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process
        self.lines: list[dict[str, Any]] = []
        self.other: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def messages(self) -> list[str]:
        return [str(line["msg"]) for line in self.lines]

    def story(self) -> str:
        return "\n".join([*(json.dumps(line) for line in self.lines), *self.other])

    async def read(self) -> None:
        assert self._process.stderr is not None
        rest = b""
        async for chunk in self._process.stderr:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                text = line.decode()
                if text.startswith("{"):
                    self.lines.append(json.loads(text))
                else:
                    self.other.append(text)

    async def go(self) -> None:
        """Let it begin (it was started with ``wait``)."""
        assert self._process.stdin is not None
        await self._process.stdin.send(b"\n")

    async def said(self, words: str) -> str:
        """Wait for the one line that has these words."""
        await until(lambda: any(words in line for line in self.messages), story=self.story)
        [line] = [line for line in self.messages if words in line]
        return line

    async def knock(self) -> anyio.abc.ByteStream:
        """Connect to the probes, and ask nothing yet."""
        await until(lambda: any("address" in line for line in self.lines), story=self.story)
        address = next(str(line["address"]) for line in self.lines if "address" in line)
        host, _, port = address.removeprefix("http://").rpartition(":")
        return await anyio.connect_tcp(host, int(port))

    async def readiness(self, stream: anyio.abc.ByteStream | None = None) -> dict[str, Any]:
        """Ask /readyz; on this connection, if there is one already."""
        async with stream or await self.knock() as asked:
            await asked.send(b"GET /readyz HTTP/1.0\r\n\r\n")
            with anyio.fail_after(PATIENCE):
                body = b"".join([chunk async for chunk in asked])
        found: dict[str, Any] = json.loads(body.partition(b"\r\n\r\n")[2])
        return {**found, "ready": body.startswith(b"HTTP/1.0 200")}

    async def state(self, resource: str, stream: anyio.abc.ByteStream | None = None) -> str:
        """The state of a resource as the table tells it."""
        found = await self.readiness(stream)
        held = found["resources"].get(resource)
        ready = "ready" if found["ready"] else "not ready"
        if held is None:
            return f"not registered, {ready}"
        devices = f", {held['healthy']} of {held['devices']} devices healthy" if held["devices"] else ""
        return f"{held['state']}, {ready}{devices}"

    async def ended(self) -> int:
        """Wait for the end and return the exit code."""
        with anyio.fail_after(PATIENCE):
            return await self._process.wait()

    async def terminated(self) -> tuple[int, float]:
        """Ask it to stop; return the exit code and the seconds that it took."""
        started = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        return await self.ended(), time.monotonic() - started

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)


@asynccontextmanager
async def child(
    paths: KubeletPaths, *backends: str, before: Sequence[str] = (), options: dict[str, Any] | None = None, **spec: Any
) -> AsyncIterator[Child]:
    """Run a plugin's process on these directories.

    Args:
        paths: The kubelet's directories.
        *backends: Classes of child.py.
        before: A command that is to run it.
        options: More of kdp.run's.
        **spec: What else child.py understands.
    """
    run = {
        "device_plugin_dir": os.fspath(paths.device_plugin_dir),
        "plugins_registry_dir": os.fspath(paths.plugins_registry_dir),
        "log_format": "json",
        "http": "127.0.0.1:0",
        **(options or {}),
    }
    command = [
        *before,
        *(sys.executable, "-W", "error", os.fspath(CHILD)),
        json.dumps({"backends": backends or ("Plain",), "options": run, **spec}),
    ]
    async with (
        await anyio.open_process(command, stdin=subprocess.PIPE, stdout=None, stderr=subprocess.PIPE) as process,
        anyio.create_task_group() as tasks,
    ):
        one = Child(process)
        tasks.start_soon(one.read)
        try:
            yield one
        finally:
            if process.returncode is None:
                process.kill()
            tasks.cancel_scope.cancel()
