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
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.to_thread

from .disk import DISK
from .judge import READY_SECONDS, STOP_SECONDS, STREAM_SECONDS, ProcessJudge, growth
from .plugin import CLOCK, COMMAND, OTHER_RESOURCE, RESOURCE, SICK, node_of
from .severing import sever
from .tree import NodeTree

TOYS = 12
MARKER = "marker"
"""How the toy begins that comes with one peace and goes with the next: only a plugin that lives now can list it so."""
FULL_DISK = "the disk was full"
BAD_DISK = "the disk failed"
SLOW_DISK = "the disk was slow"
FROZEN = "the plugin was frozen"
LOST_FILES = "the state directory was removed"
NO_DESCRIPTORS = "there were no descriptors"
CUT = "the connections were cut"
LATENESS_WINDOW = 20.0
"""Seconds for which a late wake-up of this process counts as the machine's noise."""
LOG_BYTES = 400_000
"""Bytes of the log that are kept."""
SAVED_SECONDS = 2.0
"""In which memory and disk agree: a save may wait for 0.1 s for others, and an Allocate waits for a save for 1 s."""
RETRY_SECONDS = 5.0
"""The longest pause before a save is tried again, once the disk has failed."""


class Instance:
    """A vendor's process.

    Args:
        process: The process.
        port: The port of its probes.
        channel: The socket on which it answers questions.

    Attributes:
        is_asked_to_end: Whether the world has ended it.
    """

    def __init__(self, process: asyncio.subprocess.Process, port: int, channel: socket.socket) -> None:
        self.process = process
        self.port = port
        self.channel = channel
        self.is_asked_to_end = False

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.process.returncode is None

    @property
    def is_zombie(self) -> bool:
        """Whether it has ended, and nobody has been told."""
        try:
            status = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        return self.is_alive and status.rpartition(")")[2].split()[0] == "Z"


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
        tree: The files of the node.
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
        self.tree = NodeTree(directory / "root")
        self.tree.boot(rng)
        self._log: deque[bytes] = deque()
        self._log_pipe = os.pipe()
        self._environment = {**os.environ, **(environment or {})}
        self._instance: Instance | None = None
        self._all: list[Instance] = []
        self._is_kill_armed = False
        self._disk_commands = 0
        self._disk_is: str | None = None
        self._disk_was_bad_at = float("-inf")
        self._first: dict[str, float] | None = None
        self._lateness: deque[tuple[float, float]] = deque()
        self._journal = os.pipe()
        self._rest = b""
        self._steps: list[str] = []
        self._clients: list[socket.socket] = []
        self.last_log = ""
        self._awake = anyio.Event()
        self._news = anyio.Event()
        self._toys.mkdir(parents=True)
        self._names = 0
        self.cards: dict[str, int] = {}
        self.resources: dict[str, str] = {}
        self._cards = 0
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
    def _options(self) -> Mapping[str, object]:
        """The options of `kdp.run`."""

    @abc.abstractmethod
    async def end(self) -> None:
        """Give everything back, stop the process, and judge what is left."""

    @abc.abstractmethod
    async def _wrong(self) -> str | None:
        """Return what is not as it must be in peace."""

    async def _beliefs(self, problem: str) -> str:
        """Return what the process believes of the devices in a problem; empty if nothing can be seen of it."""
        del problem
        return ""

    @abc.abstractmethod
    def _hear(self, said: dict[str, Any]) -> None:
        """Judge what a hook has said."""

    @asynccontextmanager
    async def living(self) -> AsyncGenerator[None]:
        """Have the plugin's process run, follow its journal, and end everything at last."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen)
            tasks.start_soon(self._read_log)
            tasks.start_soon(self._feel_noise)
            try:
                await self.start()
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    for instance in self.living_instances:
                        instance.process.kill()
                        await instance.process.wait()
                for instance in self._all:
                    instance.channel.close()
                self._take_log()
                self.last_log = self.log
                tasks.cancel_scope.cancel()

    @property
    def log(self) -> str:
        """The last lines of what the plugin's processes wrote."""
        return b"".join(self._log).decode(errors="replace")[-LOG_BYTES:]

    @property
    def noise(self) -> float:
        """Seconds by which the machine was late at most, of late."""
        since = time.monotonic() - LATENESS_WINDOW
        return 4.0 * max((late for at, late in self._lateness if at >= since), default=0.0)

    # -- the process ---------------------------------------------------------------------------------------------------

    @property
    def living_instances(self) -> list[Instance]:
        """The processes that have not ended."""
        return [each for each in self._all if each.is_alive]

    @property
    def pid(self) -> int | None:
        """The plugin's process; None: it does not run."""
        return self._instance.process.pid if self._instance is not None and self._instance.is_alive else None

    @property
    def _port(self) -> int:
        return 0 if self._instance is None else self._instance.port

    async def start(self) -> None:
        """Start the plugin's process, if none runs: one that was too slow to start was not asked to stop."""
        await self._notice_end()
        if self.pid is not None:
            return
        self._awake = anyio.Event()
        self._instance, self._first = await self._started(), None

    async def until_awake(self) -> bool:
        """Wait until the plugin has called a hook, so that signals are kdp's matter; return whether it has."""
        with anyio.move_on_after(self.ready_seconds + self.noise):
            await self._awake.wait()
        return self._awake.is_set()

    async def _started(self) -> Instance:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        port = free_port()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self.program,
                str(self._toys), str(self._journal[1]), str(theirs.fileno()), json.dumps(self._options), str(port),
                env=self._environment, stdin=asyncio.subprocess.DEVNULL, stdout=self._log_pipe[1],
                stderr=self._log_pipe[1], pass_fds=[self._journal[1], theirs.fileno()],
            )  # fmt: skip
        instance = Instance(process, port, ours)
        for ended in (each for each in self._all if not each.is_alive):
            ended.channel.close()
        self._all = [instance, *self.living_instances]
        return instance

    async def kill(self) -> None:
        """SIGKILL."""
        if self.pid is not None and self._instance is not None:
            await self._kill(self._instance)

    async def _kill(self, instance: Instance) -> None:
        self.causes.add("the plugin was killed")
        instance.is_asked_to_end = True
        with contextlib.suppress(ProcessLookupError):
            instance.process.kill()
        await instance.process.wait()
        self.heard()  # what it did while it lived counts for its life
        self.judge.died(excused=self._could_not_save(by_force=True))

    async def _notice_end(self) -> None:
        """Judge a process that has ended without a signal of the world's."""
        for instance in self._all:
            if instance.is_zombie:
                await instance.process.wait()
            code = instance.process.returncode
            if code is None or instance.is_asked_to_end:
                continue
            instance.is_asked_to_end = True
            self.heard()
            self.judge.died(excused=self._could_not_save(by_force=True))
            if not (code == -signal.SIGKILL and self._is_kill_armed) and NO_DESCRIPTORS not in self.causes:
                self.judge.broken(7, f"the process ended by itself with exit code {code}")

    async def terminate(self) -> None:
        """SIGTERM, and judge how it ends."""
        if self.pid is not None and self._instance is not None and await self.until_awake():
            await self._end_of(self._instance)

    async def _end_of(self, instance: Instance) -> None:
        self.causes.add("the plugin was asked to stop")
        instance.is_asked_to_end = True
        process = instance.process
        began = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        code: int | None = None
        with anyio.move_on_after(30.0):
            code = await process.wait()
        took = time.monotonic() - began
        self.heard()
        excused = self._could_not_save(by_force=False)
        if code == -signal.SIGKILL and self._is_kill_armed:
            self.judge.died(excused=excused)
            return
        noise = self.noise + (await self.slowness() if took > STOP_SECONDS else 0.0)
        self.judge.stopped(took, code, noise=noise, excused=excused)
        if code is None:
            process.kill()
            await process.wait()

    async def overlap(self, meanwhile: Callable[[], Awaitable[None]], end: str) -> None:
        """Start a second instance of the plugin beside the first, as an update does, and end one of both.

        Args:
            meanwhile: What happens while both live.
            end: ``first`` or ``second`` is killed; ``update``: the first is asked to stop.
        """
        first = self._instance
        if self.pid is None or first is None or not await self.until_awake():
            return
        self.causes.add("there were two plugins")
        self._awake = anyio.Event()
        second = await self._started()
        if end != "second":
            self._instance, self._first = second, None
        await meanwhile()
        if end == "second":
            self._awake.set()
        dead = second if end == "second" else first
        if not dead.is_alive:
            return
        if end == "update":
            await self._end_of(dead)
        else:
            await self._kill(dead)

    # -- the disk ------------------------------------------------------------------------------------------------------

    def disk(self, command: str | None, kind: str = BAD_DISK) -> None:
        """Let the disk misbehave (`tests.chaos.disk`). None: it is well again."""
        self._disk_was_bad_at = time.monotonic() if self._disk_is is not None else self._disk_was_bad_at
        if command is None:
            self._disk_is = None
            (self._toys / DISK).unlink(missing_ok=True)
        else:
            self._disk_commands += 1
            self._disk_is = kind
            self.causes.add(kind)
            self._write(DISK, f"{self._disk_commands} {command}")

    def kill_at(self, call: int) -> None:
        """Let the plugin end with SIGKILL before it changes a file for the n-th time from now on."""
        self._is_kill_armed = True
        self._disk_commands += 1
        self.causes.add("the plugin was killed")
        self._write(DISK, f"{self._disk_commands} kill={call}")

    @property
    def can_save(self) -> bool:
        """Whether nothing has kept the plugin from saving since the last peace."""
        return self.causes.isdisjoint({FULL_DISK, NO_DESCRIPTORS, BAD_DISK, SLOW_DISK, LOST_FILES})

    def _could_not_save(self, *, by_force: bool) -> bool:
        """Return whether a process that ends now could not have saved what was not saved.

        A stop tries again at once, so a disk that is well by then excuses no stop.
        """
        lasting = not self.causes.isdisjoint({FULL_DISK, NO_DESCRIPTORS, LOST_FILES}) or self._disk_is is not None
        return lasting or (by_force and time.monotonic() - self._disk_was_bad_at < SAVED_SECONDS + RETRY_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the plugin, if it runs."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
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
        self._cards += 1
        self._add_card(self._cards)
        self._place(name, self._cards, self._resource_for(name))

    def _add_card(self, card: int) -> None:
        self.tree.add_node(node_of(card), card)

    def _remove_card(self, card: int) -> None:
        self.tree.remove_node(node_of(card))

    def _resource_for(self, name: str) -> str:
        """Return the resource of a new toy."""
        del name
        return RESOURCE

    def _place(self, name: str, card: int, resource: str) -> None:
        self.cards[name], self.resources[name], self.hardware[name] = card, resource, True
        self._write_toy(name)

    def _write_toy(self, name: str) -> None:
        health = "fine" if self.hardware[name] else SICK
        self._write(name, f"{health} {self.cards[name]} {self.resources[name]}")

    def move(self, name: str, how: str) -> None:
        """Let a card come back otherwise: under another ``name``, of another ``resource``, or in another one's slot."""
        self.causes.add("a toy has moved")
        if how == "resource":
            self.resources[name] = OTHER_RESOURCE if self.resources[name] == RESOURCE else RESOURCE
            self._write_toy(name)
        elif how == "name":
            card, resource = self.cards[name], self.resources[name]
            self._names += 1
            self._remove(name)
            self._place(f"moved{self._names}", card, resource)
        else:
            self._remove_card(self.cards[name])
            self._cards += 1
            self._add_card(self._cards)
            self._place(name, self._cards, self.resources[name])

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
        self._remove_card(self.cards[name])
        self._remove(name)

    def _remove(self, name: str) -> None:
        (self._toys / name).unlink()
        for known in (self.hardware, self.cards, self.resources):
            del known[name]

    def fall(self, name: str, *, sick: bool) -> None:
        """Let a toy become sick, or well again."""
        self.causes.add("a toy's health changed")
        self.hardware[name] = not sick
        self._write_toy(name)

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
        had_bad_disk = not self.can_save
        self.disk(None)
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
            await self._judge_peace(SAVED_SECONDS + (RETRY_SECONDS if had_bad_disk else 0.0) + self.noise)
        self._is_kill_armed = False
        self._disk_was_bad_at = float("-inf")
        self.causes.clear()

    @abc.abstractmethod
    async def _judge_peace(self, saved_seconds: float) -> None:
        """Judge what must be so in each peace.

        Args:
            saved_seconds: In which memory and disk agree.
        """

    async def _follows_hardware(self) -> bool:
        """Return whether the hardware's truth is told in time, and judge it."""
        began = time.monotonic()
        ready = self.ready_seconds + (STREAM_SECONDS if CUT in self.causes else 0.0)
        problem = await self._peace(began + ready + self.noise)
        if problem is not None:  # the machine may be slow to start anything now
            problem = await self._peace(began + ready + await self.slowness())
        if problem is not None:
            took = time.monotonic() - began
            self.judge.broken(6, f"{took:.1f} s after all disturbances ended, {problem}{await self._beliefs(problem)}")
        return problem is None

    async def _peace(self, until: float) -> str | None:
        """Wait until all is as it must be, and return what is not."""
        while True:
            if self._is_kill_armed:
                await self.start()
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

    async def _read_log(self) -> None:
        os.set_blocking(self._log_pipe[0], False)
        while True:
            await anyio.wait_readable(self._log_pipe[0])
            self._take_log()

    def _take_log(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._log.append(os.read(self._log_pipe[0], 65536))
                while sum(map(len, self._log)) > 2 * LOG_BYTES:
                    self._log.popleft()

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
