"""A plugin's process, as a kubelet's node would run it, and what it says on stderr."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

import anyio
import pytest
from anyio import to_thread
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from kdp.testing import SimulatedKubelet
from kdp_testkit.patience import PATIENCE

from ..fetching import fetch


class Plugin:
    """A running plugin: its process and the lines it has said."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._said = anyio.Event()
        self.is_silent = anyio.Event()

    async def listen(self) -> None:
        assert self.process.stderr is not None
        stream = BufferedByteReceiveStream(self.process.stderr)
        with suppress(anyio.IncompleteRead, anyio.EndOfStream):
            while True:
                line = await stream.receive_until(b"\n", 1 << 20)
                self.lines.append(line.decode())
                said, self._said = self._said, anyio.Event()
                said.set()
        self.is_silent.set()

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    async def says(self, text: str, *, times: int = 1) -> str:
        """Wait for the line with this text, and return it."""
        try:
            with anyio.fail_after(PATIENCE):
                while True:
                    found = [line for line in self.lines if text in line]
                    if len(found) >= times:
                        return found[times - 1]
                    await self._said.wait()
        except TimeoutError:
            raise AssertionError(f"the plugin did not say {text!r} but:\n{self.log}") from None

    async def url(self) -> str:
        """Return where its HTTP port is by now: a configuration may start it anew, at another one."""
        await self.says("health probes at")
        return str(re.findall(r"health probes at (http://[^/]+)/livez", self.log)[-1])

    async def asked(self, path: str) -> tuple[int, str]:
        """Ask its HTTP port; return status and body."""
        status, _, body = await to_thread.run_sync(fetch, f"{await self.url()}{path}")
        return status, body

    async def readyz(self) -> tuple[int, Any]:
        """Ask its probe; return status and body."""
        status, body = await self.asked("/readyz")
        return status, json.loads(body)

    async def until_readyz(self, status: int, *, has: str = "") -> Any:
        """Wait until its probe answers with this status and text, and return the body."""
        with anyio.fail_after(PATIENCE):
            while True:
                with suppress(URLError):
                    found, body = await self.readyz()
                    if found == status and has in str(body):
                        return body
                await anyio.sleep(0.02)

    async def ends(self) -> int:
        """Wait for the process's end and return its exit code."""
        try:
            with anyio.fail_after(PATIENCE):
                code = await self.process.wait()
                await self.is_silent.wait()
        except TimeoutError:
            raise AssertionError(f"the plugin did not end; it said:\n{self.log}") from None
        return code

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Ask it to stop; return its exit code and the seconds it took."""
        asked = time.monotonic()
        self.process.send_signal(number)
        with anyio.fail_after(PATIENCE):
            code = await self.process.wait()
        took = time.monotonic() - asked
        await self.ends()
        return code, took


@asynccontextmanager
async def started(
    *command: str, cwd: Path | None = None, under: Sequence[str] = (sys.executable,), **environment: str
) -> AsyncIterator[Plugin]:
    process = await anyio.open_process(
        [*under, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        cwd=cwd,
    )
    try:
        async with anyio.create_task_group() as tasks:
            plugin = Plugin(process)
            tasks.start_soon(plugin.listen)
            yield plugin
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await process.aclose()


@pytest.fixture
def start(kubelet: SimulatedKubelet, tmp_path: Path) -> Callable[..., object]:
    """Start a plugin on the kubelet: ``start(source)`` a program, ``start(source, "W", ...)`` as ``kdp run``."""
    paths = kubelet.paths
    directories = {
        "KDP_DEVICE_PLUGIN_DIR": str(paths.device_plugin_dir),
        "KDP_PLUGINS_REGISTRY_DIR": str(paths.plugins_registry_dir),
        "KDP_POD_RESOURCES_DIR": str(paths.pod_resources_dir),
        "KDP_PODS_API_DIR": str(paths.pods_api_dir),
        "KDP_STATE_DIR": str(tmp_path / "state"),
    }

    def start(
        source: str,
        *arguments: str,
        cwd: Path | None = None,
        under: Sequence[str] = (sys.executable,),
        **environment: str,
    ) -> object:
        program = tmp_path / "plugin.py"
        program.write_text(source)
        command = ("-m", "kdp", "run", f"{program}:{arguments[0]}", *arguments[1:]) if arguments else (str(program),)
        return started(*command, cwd=cwd, under=under, **{**directories, **environment})

    return start
