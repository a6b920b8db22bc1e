"""`World`: a node under chaos, with a kubelet, a plugin's process, toys and pods."""

from __future__ import annotations

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
from typing import Protocol, final

import anyio
import anyio.lowlevel
import anyio.to_thread

from kdp.kubelet import KubeletPaths
from kdp.testing import AdmissionError, AdmittedPod, Pod, ScenarioError

from .judge import READY_SECONDS, STOP_SECONDS, Judge, Seen, growth
from .plugin import CLOCK, COMMAND, RESOURCE, SICK
from .severing import sever

TOYS = 12
MARKER = "marker"
"""How the toy begins that comes with one peace and goes with the next: only a plugin that lives now can list it so."""
FULL_DISK = "the disk was full"
IDLE_START = 0.5
"""Seconds in which a process that imports gRPC and kdp starts on an idle machine."""

LATENESS_WINDOW = 20.0
"""Seconds for which a late wake-up of this process counts as the machine's noise."""


class Kubelet(Protocol):
    """What the world needs of a kubelet, simulated or real."""

    @property
    def paths(self) -> KubeletPaths: ...
    async def admit(self, pod: Pod, /) -> AdmittedPod: ...
    async def delete(self, pod: Pod, /) -> None: ...
    async def restart(self) -> object: ...
    async def readmit(self) -> Mapping[str, AdmittedPod | AdmissionError] | None: ...


@final
class World:
    """One node.

    Args:
        directory: An empty directory of its own.
        kubelet: The kubelet, which runs.
        look: Returns what can be seen of the toys in it.
        rng: All choices come from it.
        environment: Of the plugin's process, beside this process's own.

    Attributes:
        judge: What was seen.
        causes: Why the next pod may be refused.
        pods: Those that live.
    """

    def __init__(
        self,
        directory: Path,
        kubelet: Kubelet,
        look: Callable[[], Awaitable[Seen]],
        rng: random.Random,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.kubelet = kubelet
        self._look = look
        self.rng = rng
        self.judge = Judge()
        self.causes: set[str] = set()
        self.pods: list[AdmittedPod] = []
        self.hardware: dict[str, bool] = {}
        self._toys = directory / "toys"
        self._state = directory / "state"
        self._log = directory / "log"
        self._environment = {**os.environ, **(environment or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._first: dict[str, float] | None = None
        self._lateness: deque[tuple[float, float]] = deque()
        self._journal = os.pipe()
        self._port = _free_port(rng)
        self._steps: list[str] = []
        self._clients: list[socket.socket] = []
        self._awake = anyio.Event()
        self._news = anyio.Event()
        self._toys.mkdir(parents=True)
        self._names = 0
        for number in range(TOYS):
            self.plug(f"toy{number:02}")

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
                    if self._process is not None and self._process.returncode is None:
                        self._process.kill()
                        await self._process.wait()
                tasks.cancel_scope.cancel()

    @property
    def log(self) -> str:
        """The last lines of what the plugin's processes wrote."""
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""

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
        with anyio.move_on_after(READY_SECONDS + self.noise):
            await self._awake.wait()
        return self._awake.is_set()

    async def _started(self, port: int) -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.chaos.plugin", *self._arguments, str(port),
                env=self._environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=[self._journal[1]],
            )  # fmt: skip

    @property
    def _arguments(self) -> list[str]:
        root = self.kubelet.paths.device_plugin_dir.parent
        return [str(self._toys), str(self._journal[1]), str(root), str(self._state)]

    async def kill(self) -> None:
        """SIGKILL."""
        if self.pid is not None and self._process is not None:
            self.causes.add("the plugin was killed")
            self._process.kill()
            await self._process.wait()
            await self.heard()  # what it did while it lived counts for its life
            self.judge.died()

    async def terminate(self) -> None:
        """SIGTERM, and judge how it ends."""
        if self.pid is None or self._process is None or not await self.until_awake():
            return
        self.causes.add("the plugin was asked to stop")
        began = time.monotonic()
        self._process.terminate()
        code: int | None = None
        with anyio.move_on_after(30.0):
            code = await self._process.wait()
        took = time.monotonic() - began
        self.judge.stopped(took, code, noise=self.noise + (await self._slowness() if took > STOP_SECONDS else 0.0))
        if code is None:
            self._process.kill()
            await self._process.wait()

    async def second(self) -> None:
        """Start the same plugin once more beside itself for a moment: it may take over or wait, and harms nothing."""
        self.causes.add("there were two plugins")
        other = await self._started(0)
        await anyio.sleep(self.rng.uniform(0.2, 1.5))
        other.kill()
        await other.wait()
        await self.heard()
        self.judge.died()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the plugin, if it runs."""
        if self.pid is not None:
            os.kill(self.pid, number)

    def sever(self) -> None:
        """Break all connections to the plugin."""
        if self.pid is not None:
            self.causes.add("the connections were cut")
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

    # -- pods ----------------------------------------------------------------------------------------------------------

    async def admit(self, count: int) -> None:
        """Admit a pod that asks for so many toys, and judge what it was given."""
        if count > len(self.hardware):
            return
        try:
            admitted = await self.kubelet.admit(Pod.asking({RESOURCE: count}))
        except AdmissionError as error:
            held = sum(len(pod.devices(RESOURCE)) for pod in self.pods)
            scarce = {"too few were free"} if held + count > sum(self.hardware.values()) else set[str]()
            # A kubelet may notice an instance's end after its successor has connected, and takes that for stopped.
            late = {"the kubelet noticed an end late"} if "has been stopped" in str(error) else set[str]()
            self.judge.refused(str(error), causes=sorted(self.causes | scarce | late))
            return
        except ScenarioError:
            return  # there is no kubelet
        await self.heard()
        self.pods.append(admitted)
        ids, envs = sorted(admitted.devices(RESOURCE)), admitted.reply().envs
        self.judge.admitted(admitted.pod.uid, ids, envs, saved=FULL_DISK not in self.causes)

    async def delete(self, pod: AdmittedPod) -> None:
        """Delete a pod."""
        self.pods.remove(pod)
        self.judge.leaving(pod.pod.uid)
        with contextlib.suppress(ScenarioError):  # the kubelet has refused it after a restart
            await self.kubelet.delete(pod.pod)

    async def restart_kubelet(self) -> None:
        """Restart the kubelet, which admits its pods again."""
        self.causes.add("the kubelet was restarted")
        await self.kubelet.restart()
        for uid, found in (await self.kubelet.readmit() or {} if self.pods else {}).items():
            if isinstance(found, AdmissionError):
                self.pods = [pod for pod in self.pods if pod.pod.uid != uid]
                self.judge.leaving(uid)

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
        self._mark()
        began = time.monotonic()
        problem = await self._peace(began + READY_SECONDS + self.noise)
        if problem is not None:  # the machine may be slow to start anything now
            problem = await self._peace(began + READY_SECONDS + await self._slowness())
        self.judge.counts["settled"] += 1
        if problem is not None:
            self.judge.broken(6, f"{time.monotonic() - began:.1f} s after all disturbances ended, {problem}")
        elif self.pid is not None:
            self._first = self._first or self.has
            self.judge.grown(await self._lasting_growth(self._first, time.monotonic() + READY_SECONDS + self.noise))
        self.causes.clear()

    @property
    def sockets(self) -> list[Path]:
        """The plugin's sockets, also those that a killed process has left."""
        directory = self.kubelet.paths.device_plugin_dir
        return [path for path in directory.iterdir() if path.is_socket() and path.name != "kubelet.sock"]

    @property
    def is_serving(self) -> bool:
        """Whether one of the plugin's sockets answers."""
        return any(map(_answers, self.sockets))

    async def _peace(self, until: float) -> str | None:
        """Wait until all is as it must be, and return what is not."""
        while True:
            answering = sum(map(_answers, self.sockets))
            problem = f"{answering} sockets answer" if answering > 1 else (await self._look()).differs(self.hardware)
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

    async def _slowness(self) -> float:
        """Return by how many seconds more the plugin may be late: a process is started that only imports what it does."""
        began = time.monotonic()
        await anyio.run_process([sys.executable, "-c", "import grpc, kdp.deviceplugin.manager"])
        return max(0.0, 8.0 * (time.monotonic() - began - IDLE_START))

    async def end(self) -> None:
        """Delete all pods, wait until all is released, stop the plugin, and judge what is left."""
        await self.settle()
        while self.pods:
            await self.delete(self.pods[-1])
        with anyio.move_on_after(60.0):
            while self.judge.lost:
                await self._news.wait()
        if lost := self.judge.lost:
            self.judge.broken(3, f"{len(lost)} allocations were never released, such as {lost[:3]}")
        await self.terminate()
        await self.start()  # it cleans up what killed ones have left
        await self.settle()
        await self.terminate()
        if left := [path.name for path in self.sockets]:
            self.judge.broken(7, f"after its end there are the sockets {sorted(left)}")

    # -- what is heard -------------------------------------------------------------------------------------------------

    async def heard(self) -> None:
        """Wait until the journal is read: what a hook said before its call was answered is judged first."""
        while self._unread():
            await anyio.lowlevel.checkpoint()

    def _unread(self) -> bool:
        return bool(select.select([self._journal[0]], [], [], 0)[0])

    async def _listen(self) -> None:
        rest = b""
        os.set_blocking(self._journal[0], False)
        while True:
            await anyio.wait_readable(self._journal[0])
            *lines, rest = (rest + os.read(self._journal[0], 65536)).split(b"\n")
            for line in lines:
                said = json.loads(line)
                if said["hook"] == "discover":
                    self._awake.set()
                    continue
                hear = self.judge.allocated if said["hook"] == "allocate" else self.judge.released
                hear(said["number"], said["ids"])
            news, self._news = self._news, anyio.Event()
            news.set()

    async def _feel_noise(self) -> None:
        while True:
            before = time.monotonic()
            await anyio.sleep(0.05)
            now = time.monotonic()
            self._lateness.append((now, now - before - 0.05))
            while self._lateness and self._lateness[0][0] < now - LATENESS_WINDOW:
                self._lateness.popleft()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as somebody:
        somebody.setblocking(False)
        return somebody.connect_ex(str(path)) == 0


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def _free_port(rng: random.Random) -> int:
    """Return a port of which no client on this machine is given one: who connects to it in vain would meet himself."""
    while True:
        port = rng.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
