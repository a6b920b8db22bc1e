"""`Node`: a vendor's process under chaos, its toys and its hooks, whatever it serves."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import http.client
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import time
import urllib.request
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.to_thread

from .judge import READY_SECONDS, STOP_SECONDS, STREAM_SECONDS, ProcessJudge, growth
from .plugin import CLOCK, COMMAND, SICK
from .severing import sever

TOYS = 12
MARKER = "marker"
"""How the toy begins that comes with one peace and goes with the next: only a plugin that lives now can list it so."""
FULL_DISK = "the disk was full"
NO_DESCRIPTORS = "there were no descriptors"
CUT = "the connections were cut"
LATENESS_WINDOW = 20.0
"""Seconds for which a late wake-up of this process counts as the machine's noise."""


class Node(abc.ABC):
    """A process that serves toys, and what happens to both.

    Args:
        directory: An empty directory of its own.
        rng: All choices come from it.
        environment: Of the process, beside this process's own.

    Attributes:
        program: The module that the process runs.
        imports: What it imports at its start, by which the machine's slowness is measured.
        idle_start: Seconds in which a process that imports these starts on an idle machine.
        ready_seconds: In which all is well after a disturbance.
        causes: Why the next pod may be refused.
        last_log: The log, as it was when everything had ended.
    """

    program: ClassVar[str]
    imports: ClassVar[str] = "grpc, kdp.deviceplugin.manager"
    idle_start: ClassVar[float] = 0.5
    ready_seconds: ClassVar[float] = READY_SECONDS

    def __init__(self, directory: Path, rng: random.Random, environment: Mapping[str, str] | None = None) -> None:
        self.rng = rng
        self.causes: set[str] = set()
        self.hardware: dict[str, bool] = {}
        self._toys = directory / "toys"
        self._state = directory / "state"
        self._log = directory / "log"
        self._environment = {**os.environ, **(environment or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._all: list[asyncio.subprocess.Process] = []
        self._first: dict[str, float] | None = None
        self._lateness: deque[tuple[float, float]] = deque()
        self._journal = os.pipe()
        self._rest = b""
        self._port = free_port()
        self._steps: list[str] = []
        self._clients: list[socket.socket] = []
        self.last_log = ""
        self._awake = anyio.Event()
        self._news = anyio.Event()
        self._toys.mkdir(parents=True)
        self._names = 0
        for number in range(TOYS):
            self.plug(f"toy{number:02}")

    @property
    @abc.abstractmethod
    def judge(self) -> ProcessJudge:
        """What was seen."""

    @property
    @abc.abstractmethod
    def sockets(self) -> list[Path]:
        """The process's sockets, also those that a killed one has left."""

    @property
    @abc.abstractmethod
    def _arguments(self) -> list[str]:
        """What the program is called with, before the port of its probes."""

    @abc.abstractmethod
    async def end(self) -> None:
        """Give everything back, stop the process, and judge what is left."""

    @abc.abstractmethod
    async def _wrong(self) -> str | None:
        """Return what is not as it must be in peace."""

    @abc.abstractmethod
    def _hear(self, said: dict[str, Any]) -> None:
        """Judge what a hook has said."""

    @asynccontextmanager
    async def living(self) -> AsyncGenerator[None]:
        """Have the plugin's process run, follow its journal, and end everything at last."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen)
            tasks.start_soon(self._feel_noise)
            try:
                await self.start()
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    for process in [each for each in self._all if each.returncode is None]:
                        process.kill()
                        await process.wait()
                self.last_log = self.log
                tasks.cancel_scope.cancel()

    @property
    def log(self) -> str:
        """The last lines of what the plugin's processes wrote."""
        return self._log.read_text(errors="replace")[-40000:] if self._log.exists() else ""

    @property
    def noise(self) -> float:
        """Seconds by which the machine was late at most, of late."""
        since = time.monotonic() - LATENESS_WINDOW
        return 4.0 * max((late for at, late in self._lateness if at >= since), default=0.0)

    # -- the process ---------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """The plugin's process; None: it does not run."""
        alive = self._process is not None and self._process.returncode is None
        return self._process.pid if alive and self._process is not None else None

    async def start(self) -> None:
        """Start the plugin's process, if none runs: one that was too slow to start was not asked to stop."""
        if self.pid is not None:
            return
        self._awake = anyio.Event()
        self._process, self._first = await self._started(self._port), None

    async def until_awake(self) -> bool:
        """Wait until the plugin has called a hook, so that signals are kdp's matter; return whether it has."""
        with anyio.move_on_after(self.ready_seconds + self.noise):
            await self._awake.wait()
        return self._awake.is_set()

    async def _started(self, port: int) -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self.program, *self._arguments, str(port),
                env=self._environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=[self._journal[1]],
            )  # fmt: skip
        self._all = [process, *(each for each in self._all if each.returncode is None)]
        return process

    async def kill(self) -> None:
        """SIGKILL."""
        if self.pid is not None and self._process is not None:
            self.causes.add("the plugin was killed")
            self._process.kill()
            await self._process.wait()
            self.heard()  # what it did while it lived counts for its life
            self.judge.died()

    async def terminate(self) -> None:
        """SIGTERM, and judge how it ends."""
        if self.pid is not None and self._process is not None and await self.until_awake():
            await self._end_of(self._process)

    async def _end_of(self, process: asyncio.subprocess.Process) -> None:
        self.causes.add("the plugin was asked to stop")
        began = time.monotonic()
        process.terminate()
        code: int | None = None
        with anyio.move_on_after(30.0):
            code = await process.wait()
        took = time.monotonic() - began
        self.heard()
        self.judge.stopped(took, code, noise=self.noise + (await self.slowness() if took > STOP_SECONDS else 0.0))
        if code is None:
            process.kill()
            await process.wait()

    async def second(self) -> None:
        """Start the same plugin once more beside itself for a moment: it may take over or wait, and harms nothing."""
        self.causes.add("there were two plugins")
        other = await self._started(0)
        await anyio.sleep(self.rng.uniform(0.2, 1.5))
        other.kill()
        await other.wait()
        self.heard()
        self.judge.died()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the plugin, if it runs."""
        if self.pid is not None:
            os.kill(self.pid, number)

    def sever(self) -> None:
        """Break all connections to the plugin."""
        if self.pid is not None:
            self.causes.add(CUT)
            self.judge.counts["severed"] += sever(self.pid)

    def limit(self, kind: int, most: int) -> None:
        """Set the plugin's soft limit of this kind."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                _, hard = resource.prlimit(self.pid, kind)
                resource.prlimit(self.pid, kind, (hard if most < 0 else most, hard))

    @property
    def has(self) -> dict[str, float]:
        """What the plugin's process has: descriptors, threads, and MB of memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        words = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.split()[1:]}
        return {
            "descriptors": float(len(os.listdir(f"/proc/{self.pid}/fd"))),
            "threads": float(words["Threads"]),
            "MB": int(words["VmRSS"]) / 1024,
        }

    # -- hardware and hooks --------------------------------------------------------------------------------------------

    def plug(self, name: str | None = None) -> None:
        """Add a healthy toy."""
        self.causes.add("a toy was plugged in")
        if name is None:
            self._names += 1
            name = f"new{self._names}"
        self._write(name, "fine")
        self.hardware[name] = True

    @property
    def toys(self) -> list[str]:
        """The toys that operations may change."""
        return sorted(name for name in self.hardware if not name.startswith(MARKER))

    def _mark(self) -> None:
        """Change the hardware, so that what a plugin listed before its end is not taken for the truth."""
        markers = [name for name in self.hardware if name.startswith(MARKER)]
        if markers:
            self.unplug(markers[0])
        else:
            self.plug(f"{MARKER}{self.judge.counts['settled']}")

    def unplug(self, name: str) -> None:
        """Take a toy away."""
        self.causes.add("a toy was taken away")
        (self._toys / name).unlink()
        del self.hardware[name]

    def fall(self, name: str, *, sick: bool) -> None:
        """Let a toy become sick, or well again."""
        self.causes.add("a toy's health changed")
        self._write(name, SICK if sick else "fine")
        self.hardware[name] = not sick

    def _write(self, name: str, text: str) -> None:
        hidden = self._toys / f".{name}"
        hidden.write_text(text)
        hidden.rename(self._toys / name)

    def command(self, text: str | None) -> None:
        """Let a hook misbehave (``allocate=hang``); None: none does."""
        if text is None:
            (self._toys / COMMAND).unlink(missing_ok=True)
        else:
            self.causes.add(f"a hook was told {text}")
            self._write(COMMAND, text)

    def step_clock(self, seconds: float) -> None:
        """Let the plugin's wall clock be wrong by so much from now on."""
        self._steps.append(f"{time.time()} {seconds}")
        self._write(CLOCK, "\n".join(self._steps))

    def occupy_probes(self, request: bytes) -> None:
        """Connect to the plugin's probes, send the beginning of a request, and keep the connection."""
        with contextlib.suppress(OSError):
            client = socket.create_connection(("127.0.0.1", self._port), timeout=0.1)
            self._clients.append(client)
            client.sendall(request)

    # -- peace ---------------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """End all disturbances, and judge how soon everything is as it must be."""
        self.command(None)
        self.signal(signal.SIGCONT)
        self.limit(resource.RLIMIT_FSIZE, -1)
        self.limit(resource.RLIMIT_NOFILE, -1)
        while self._clients:
            self._clients.pop().close()
        await self.start()
        is_peace = await self._follows_hardware()
        if is_peace:  # what was listed before may be the truth by chance, so there is one change more
            self._mark()
            is_peace = await self._follows_hardware()
        self.judge.counts["settled"] += 1
        if is_peace and self.pid is not None:
            self._first = self._first or self.has
            until = time.monotonic() + self.ready_seconds + self.noise
            self.judge.grown(await self._lasting_growth(self._first, until))
        self.causes.clear()

    async def _follows_hardware(self) -> bool:
        """Return whether the hardware's truth is told in time, and judge it."""
        began = time.monotonic()
        ready = self.ready_seconds + (STREAM_SECONDS if CUT in self.causes else 0.0)
        problem = await self._peace(began + ready + self.noise)
        if problem is not None:  # the machine may be slow to start anything now
            problem = await self._peace(began + ready + await self.slowness())
        if problem is not None:
            self.judge.broken(6, f"{time.monotonic() - began:.1f} s after all disturbances ended, {problem}")
        return problem is None

    async def _peace(self, until: float) -> str | None:
        """Wait until all is as it must be, and return what is not."""
        while True:
            problem = await self._wrong()
            if problem is None and not await anyio.to_thread.run_sync(_is_ready, self._port):
                problem = "/readyz does not say that it is ready"
            if problem is None or time.monotonic() >= until:
                return problem
            await anyio.sleep(0.02)

    async def _lasting_growth(self, first: Mapping[str, float], until: float) -> list[str]:
        """Return what the process has too much of, and does not let go of: connections of a moment ago end soon."""
        while True:
            found = growth(first, self.has)
            if not found or time.monotonic() >= until:
                return found
            await anyio.sleep(0.02)

    async def slowness(self) -> float:
        """Return by how many more seconds the plugin may be late: start a process that only imports what it does."""
        began = time.monotonic()
        await anyio.run_process([sys.executable, "-c", f"import {self.imports}"])
        return max(0.0, 8.0 * (time.monotonic() - began - self.idle_start))

    # -- what is heard -------------------------------------------------------------------------------------------------

    def heard(self) -> None:
        """Read the journal: what a hook said before its call was answered is judged first."""
        while select.select([self._journal[0]], [], [], 0)[0]:
            *lines, self._rest = (self._rest + os.read(self._journal[0], 65536)).split(b"\n")
            for line in lines:
                said = json.loads(line)
                if said["hook"] == "discover":
                    self._awake.set()
                else:
                    self._hear(said)
            news, self._news = self._news, anyio.Event()
            news.set()

    async def _listen(self) -> None:
        while True:
            await anyio.wait_readable(self._journal[0])
            self.heard()

    async def _feel_noise(self) -> None:
        while True:
            before = time.monotonic()
            await anyio.sleep(0.05)
            now = time.monotonic()
            self._lateness.append((now, now - before - 0.05))
            while self._lateness and self._lateness[0][0] < now - LATENESS_WINDOW:
                self._lateness.popleft()


def answers(path: Path) -> bool:
    """Return whether somebody listens at a socket."""
    with socket.socket(socket.AF_UNIX) as somebody:
        somebody.setblocking(False)
        return somebody.connect_ex(str(path)) == 0


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def free_port() -> int:
    """Return a port of which no client on this machine is given one: who connects to it in vain would meet himself.

    It does not come from the seed: worlds of one seed that play side by side would have the same one.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
