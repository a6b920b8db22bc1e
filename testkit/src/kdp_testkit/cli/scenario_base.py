"""What the scenarios of ``kdp simulate`` have in common: the plugin's process, its log, and how a scenario ends.

Rule: every wait has a deadline, and its end is a sentence about the plugin. Whatever happens, the plugin's process and
everything that it started are gone when `BaseScenario.run` returns.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from .. import NotReached, ScenarioError
from ..lifetime import leaves
from .interruption import Interrupted, unless_interrupted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import ByteReceiveStream, Process

DOWNTIME = 0.1
"""Seconds for which the kubelet is away when it is killed."""

MAX_COMPLAINTS = 20
"""Number of different warnings and errors that are kept of the plugin's log."""

_COMPLAINING = frozenset(("warning", "error", "critical"))

_OF_THE_SCENARIO = (
    "kdp.cluster",
    "kdp.daemon.services",
    "kdp.deviceplugin.refusal_log",
    "kdp.deviceplugin.state_log",
    "kdp.deviceplugin.tracking",
    "kdp.dra.claims.lifecycle",
    "kdp.dra.claims.prepare",
    "kdp.dra.plugin",
    "kdp.dra.publishing",
    "kdp.kubelet",
    "kdp.supervision.change_log",
)
"""Loggers whose warnings the scenario itself causes, or judges: the kubelet is killed, a pod asks for many devices, and
the node may be a snapshot."""

_REFUSAL = "CRITICAL kdp: "
"""How the line begins with which a process refuses to start."""

_T = TypeVar("_T")


class ScenarioFailed(Exception):
    """The plugin did not do what it must; the text is a sentence about it."""


class Misconfigured(Exception):
    """The plugin's process did not start because of what it was given; the text is its own sentence."""


class BaseScenario(ABC):
    """One run of a scenario.

    Args:
        arguments: What follows ``kdp run``: the target and its options.
        profile: Which kubelet.
        deadline: Seconds that one step may take.
        tell: Told of each thing that happens: a name, a line for people, fields for programs, and ``at``, the time of
            `time.monotonic`.
    """

    WHAT = "plugin"
    """What is played with, in words."""

    is_lenient = False
    """Whether a plugin without a healthy device passes."""

    def __init__(self, arguments: Sequence[str], *, profile: str, deadline: float, tell: Callable[..., None]) -> None:
        self._arguments = arguments
        self._profile = profile
        self._deadline = deadline
        self._teller = tell
        self._held_back: list[Callable[[], None]] | None = []
        self._probes = anyio.Event()
        self._probes_address = ""
        self._log: deque[str] = deque(maxlen=200)
        self._complaints: dict[str, None] = {}
        self._broken = ""
        self._last_answer = ""
        self._exit_code: int | None = None
        self._started = 0.0

    def tell(self, event: str, line: str, fields: Mapping[str, object], *, at: float | None = None) -> None:
        """Tell, but hold the beginning back until the plugin's process has accepted its configuration."""
        at = time.monotonic() if at is None else at
        if self._held_back is None:
            self._teller(event, line, fields, at=at)
        else:
            self._held_back.append(lambda: self._teller(event, line, fields, at=at))

    def tell_held_back(self) -> None:
        """Tell what was held back, and hold nothing back any more."""
        held_back, self._held_back = self._held_back or [], None
        for tell in held_back:
            tell()

    @property
    def log(self) -> list[str]:
        """The last lines of the plugin's log."""
        return list(self._log)

    @property
    def complaints(self) -> list[str]:
        """The different warnings and errors in the plugin's log, the first ones."""
        return list(self._complaints)

    async def run(self) -> None:
        """Go through the scenario.

        Raises:
            ScenarioFailed: The plugin did not pass, or the scenario was interrupted.
            Misconfigured: The plugin's process said that its configuration is wrong.
        """
        try:
            failure = await unless_interrupted(self._outcome)
        except Interrupted as signal_:
            raise ScenarioFailed(f"interrupted by {signal_}") from None
        if isinstance(failure, ScenarioFailed):
            self.tell_held_back()
        if failure is not None:
            raise failure

    @abstractmethod
    async def play(self) -> ScenarioFailed | Misconfigured | None:
        """Set the stage, start the process (`process`), go through the steps (`against`); return the failure."""

    @abstractmethod
    def as_failure(self, error: Exception) -> ScenarioFailed | None:
        """Return what an error of a step is as a sentence; None: it is a bug of ours."""

    async def _outcome(self) -> ScenarioFailed | Misconfigured | None:
        """Return the failure instead of raising it, so that no group wraps it."""
        try:
            return await self.play()
        except ExceptionGroup as group:
            for leaf in leaves(group):
                if isinstance(leaf, (ScenarioFailed, Misconfigured)):
                    return leaf
            raise
        except (ScenarioFailed, Misconfigured) as failure:
            return failure
        except ScenarioError as error:  # the directory's name is too long for sockets in it
            return Misconfigured(f"{error} (the variable TMPDIR says where)")

    async def against(self, steps: Awaitable[None], process: Process) -> ScenarioFailed | Misconfigured | None:
        """Go through the steps, unless the process ends before its time."""
        failure: ScenarioFailed | Misconfigured | None = None
        async with anyio.create_task_group() as tasks:

            async def watch_process() -> None:
                nonlocal failure
                code = await process.wait()
                if self._exit_code is None:  # nobody asked it to end
                    await self._log_complete.wait()
                    failure = self._early_end(code)
                    tasks.cancel_scope.cancel()

            tasks.start_soon(watch_process)
            try:
                await steps
            except ScenarioFailed as error:
                failure = error
            except Exception as error:
                failure = self.as_failure(error)
                if failure is None:
                    raise
            if failure is not None:
                with anyio.move_on_after(0.3):
                    await process.wait()  # if it has died, that is why: the task above tells it
                    await anyio.sleep_forever()
            tasks.cancel_scope.cancel()
        return failure

    def _early_end(self, code: int) -> ScenarioFailed | Misconfigured:
        if code == 2:
            last = self._log[-1] if self._log else "the plugin's process refused its configuration"
            return Misconfigured(last.removeprefix(_REFUSAL))
        return ScenarioFailed(f"the {self.WHAT} ended {_exit(code)} although nobody asked it to")

    # The process ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def process(self, *directories: str) -> AsyncGenerator[Process]:
        """Start ``kdp run`` with these options besides those that were given, and end it whatever happens."""
        command = [
            *(sys.executable, "-m", "kdp_testkit.cli.child", "run", *self._arguments, *directories),
            *("--log-format", "json", "--log-level", "info", "--http", "127.0.0.1:0", "--http-details", "all"),
        ]
        self._log_complete = anyio.Event()
        self._started = time.monotonic()
        process = await anyio.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "KDP_PARENT_PID": str(os.getpid())},
            start_new_session=True,  # so that a Ctrl-C reaches only us, and its children can be ended with it
        )
        self.tell(
            f"{self.WHAT}_started",
            f"{self.WHAT} started: kdp run {' '.join(self._arguments)} (process {process.pid})",
            {"pid": process.pid, "arguments": list(self._arguments)},
            at=self._started,
        )
        try:
            async with anyio.create_task_group() as tasks:
                assert process.stderr is not None
                tasks.start_soon(self._read_log, process.stderr)
                yield process
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with anyio.move_on_after(5):
                    await process.wait()
                await process.aclose()

    async def _read_log(self, stream: ByteReceiveStream) -> None:
        rest = b""
        async for chunk in stream:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take_log_line(line.decode(errors="replace"))
        if rest:
            self._take_log_line(rest.decode(errors="replace"))
        self._log_complete.set()

    def take_record(self, record: Mapping[str, object]) -> None:  # noqa: B027 - most scenarios need no record
        """Take a record of the plugin's log, also one that is no fault."""

    def _take_log_line(self, line: str) -> None:
        try:
            fields = json.loads(line)
            text = f"{fields['level'].upper():<7} {fields['logger']}: {fields['msg']}"
        except (ValueError, KeyError, TypeError, AttributeError):
            self._log.append(line)  # not from logging: a print, a crash
            return
        self._log.append(text)
        self.take_record(fields)
        if fields["level"] == "error" and fields["logger"] == "kdp.supervision.publisher":
            self._broken = self._broken or str(fields["msg"])
        is_caused = fields["level"] == "warning" and str(fields["logger"]).startswith(_OF_THE_SCENARIO)
        if fields["level"] in _COMPLAINING and not is_caused and len(self._complaints) < MAX_COMPLAINTS:
            self._complaints[text] = None
        self._log.extend(fields.get("exc", "").splitlines())
        if "address" in fields:
            self._probes_address = str(fields["address"])
            self._probes.set()

    # Steps that all scenarios have ------------------------------------------------------------------------------------

    async def until_ready(self, changed: Callable[[], Awaitable[None]], is_seen: Callable[[], object]) -> str:
        """Wait until the plugin itself says that it is ready, and it is seen as well; return "", or why it is not.

        Args:
            changed: Waits for the next thing that happens.
            is_seen: Whether the other side sees it.
        """
        body = ""
        with anyio.move_on_after(self._deadline):
            await self._probes.wait()
            self.tell_held_back()
            while True:
                status, body = await readiness(self._probes_address)
                self._last_answer = body
                if status == 200 and is_seen():
                    return ""
                if self._broken and not self.is_lenient:
                    return self._broken
                with anyio.move_on_after(0.02):
                    await changed()
        return why_not_ready(body)

    def never_ready(self, what: str, why: str) -> ScenarioFailed:
        """Return the failure of a plugin that was not ready; one that cannot discover is not waited for."""
        if self._broken:
            return ScenarioFailed(f"the {self.WHAT} cannot list its devices: {why}")
        return ScenarioFailed(f"{what} within {self._deadline:g} s: {why}")

    async def stops(self, process: Process, *directories: Path) -> None:
        """Ask the process to end, and see that it does so in order.

        Args:
            process: The process.
            directories: Where it must leave no sockets.

        Raises:
            ScenarioFailed: It does not.
        """
        asked = time.monotonic()
        self._exit_code = 0
        process.terminate()
        self.tell("stop_asked", f"{self.WHAT} asked to stop (SIGTERM)", {}, at=asked)
        code = await self.in_time(process.wait(), f"the {self.WHAT} did not end after SIGTERM")
        seconds = time.monotonic() - asked
        await self.in_time(self._log_complete.wait(), f"the {self.WHAT}'s log did not end with its process")
        self.tell(
            "stopped",
            f"{self.WHAT} ended {_exit(code)} after {seconds * 1000:.0f} ms",
            {"exit_code": code, "seconds": round(seconds, 6)},
        )
        if code != 0:
            raise ScenarioFailed(f"the {self.WHAT} ended {_exit(code)} after SIGTERM; it must end with exit code 0")
        for directory in directories:
            if not directory.is_dir():
                continue
            left = [path.name for path in directory.iterdir() if path.is_socket() and path.name != "kubelet.sock"]
            if left:
                raise ScenarioFailed(f"the {self.WHAT} left sockets behind in {directory}: {', '.join(left)}")

    def check_declared(self) -> None:
        """Refuse a backend if a device consumes an undeclared counter.

        Raises:
            ScenarioFailed: One does, and the scenario is not lenient.
        """
        faults = _faults_in(self._last_answer, kind="undeclared")
        if faults and not self.is_lenient:
            raise ScenarioFailed(f"{faults[0]}; declare it there, or pass --lenient")

    def check_tried(self, pods: int) -> None:
        """Refuse a scenario in which no device was healthy, and so nothing was tried, with the reasons.

        Raises:
            ScenarioFailed: So it was, and the scenario is not lenient.
        """
        if pods == 0 and not self.is_lenient:
            reasons = "; ".join(_faults_in(self._last_answer)) or "no device was discovered"
            raise ScenarioFailed(f"no device is healthy, so no pod was tried: {reasons}; --lenient passes all the same")

    async def in_time(self, step: Awaitable[_T], failure: str) -> _T:
        """Wait for a step.

        Raises:
            ScenarioFailed: It took longer than the deadline; ``failure`` says what did not happen.
        """
        try:
            with anyio.fail_after(self._deadline):
                return await step
        except NotReached:
            pass
        except TimeoutError:
            pass
        raise ScenarioFailed(f"{failure} within {self._deadline:g} s")


async def readiness(address: str) -> tuple[int, str]:
    """Ask the plugin whether it is ready; (0, "") while it cannot be reached."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    answer = b""
    with suppress(OSError, anyio.BrokenResourceError):
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(b"GET /readyz HTTP/1.0\r\n\r\n")
            async for chunk in stream:
                answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split()
    return (int(words[1]) if len(words) > 1 else 0), body.decode(errors="replace")


def _faults_in(body: str, kind: str | None = None) -> list[str]:
    """Return each unhealthy device with its reason, as the plugin reports them; a kind selects some."""
    try:
        answer: dict[str, Any] = json.loads(body)
    except ValueError:
        return []
    parts: dict[str, dict[str, Any]] = answer.get("resources") or answer.get("drivers") or {}
    return [
        f"{device} of {name}: {fault['reason']}"
        for name, held in parts.items()
        for device, fault in held.get("faults", {}).items()
        if kind is None or kind in fault["kinds"]
    ]


def why_not_ready(body: str) -> str:
    """Return in words what the plugin says of why it is not ready."""
    try:
        answer: dict[str, Any] = json.loads(body)
        parts: dict[str, dict[str, object]] = answer.get("resources") or answer.get("drivers") or {}
        backends: list[dict[str, object]] = answer.get("backends", [])
    except (ValueError, AttributeError):
        return "it never said that it is alive"
    reasons = {held["reason"]: f"{held['class']}: {held['reason']}" for held in backends if held.get("reason")}
    for name, held in parts.items():  # a resource has its backend's reason
        reasons.setdefault(
            held.get("reason") or name, f"{name} is {held.get('state')} ({held.get('reason') or 'no reason'})"
        )
    return "; ".join(reasons.values()) or "it has no resource, because no device was discovered"


def _exit(code: int) -> str:
    return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
