"""The demo's two processes: the plugin, and the simulated kubelet.

Rule: every wait has a deadline, and its end is a sentence. Times are `time.monotonic` seconds, which the processes of
one machine share.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = ["Child", "DemoFailed", "Kubelet", "Plugin"]

Seen = Mapping[str, Any]
"""A line of the simulated kubelet: ``{"event": NAME, "t": NANOSECONDS, ...}``."""

_PR_SET_PDEATHSIG = 1


class DemoFailed(Exception):
    """A step did not come out as it must; the text is a sentence about it."""


def _die_with_the_demo() -> None:
    """Runs in the child: if the demo is killed by SIGKILL, nobody else would end the child."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """A process that is gone on exit.

    Args:
        command: The program and its arguments.
        deadline: Seconds that one wait may take.

    Attributes:
        pid: Its number.
        started: When it was started.
    """

    def __init__(self, command: Sequence[str], *, deadline: float) -> None:
        self._deadline = deadline
        self.started = time.monotonic()
        # A session of its own: Ctrl-C is the demo's affair, which ends its children in order.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_the_demo,  # noqa: PLW1509 - no thread of the demo holds a lock that prctl needs
        )
        self.pid = self._process.pid
        self._changed = threading.Condition()
        self._errors: deque[str] = deque(maxlen=40)
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, take), daemon=True)
            for pipe, take in ((self._process.stdout, self._take), (self._process.stderr, self._take_error))
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        """Do nothing more."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """End it, if it still runs."""
        self.kill()

    @property
    def errors(self) -> list[str]:
        """The last lines of its stderr."""
        with self._changed:
            return list(self._errors)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash does. Idempotent."""
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join(1.0)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def stop(self) -> tuple[int, float]:
        """Ask it to stop with SIGTERM; return its exit code and the seconds that it took."""
        asked = time.monotonic()
        self._process.terminate()
        try:
            code = self._process.wait(self._deadline)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"process {self.pid} did not stop within {self._deadline:g} s of SIGTERM") from None
        return code, time.monotonic() - asked

    def _read(self, pipe: Any, take: Callable[[str], None]) -> None:
        with contextlib.suppress(ValueError):  # closed by kill
            for line in pipe:
                with self._changed:
                    take(line.decode(errors="replace").rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _take(self, line: str) -> None:
        """Take a line of stdout; the lock is held."""

    def _take_error(self, line: str) -> None:
        self._errors.append(line)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition, which is looked at with the lock held."""
        end = time.monotonic() + self._deadline
        with self._changed:
            while not self._changed.wait_for(condition, 0.1):
                if self._process.poll() is not None:
                    raise DemoFailed(
                        f"{what}: process {self.pid} ended with exit code {self._process.returncode} before"
                    )
                if time.monotonic() > end:
                    raise DemoFailed(f"{what}: not within {self._deadline:g} s")


class Plugin(Child):
    """``kdp run`` as a process of its own.

    Args:
        arguments: What follows ``kdp run``.
        deadline: Seconds that one wait may take.
    """

    def __init__(self, arguments: Sequence[str], *, deadline: float) -> None:
        super().__init__([sys.executable, "-m", "kdp", "run", *arguments], deadline=deadline)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None


class Kubelet(Child):
    """``python -m kdp_testkit.process``: the simulated kubelet as a process of its own, which can be killed.

    Args:
        root: Its root directory.
        profile: Which kubelet.
        start_delay: Seconds before it does anything.
        listen_delay: Seconds between bind(2) and listen(2) of its socket.
        deadline: Seconds that one wait may take.

    Attributes:
        bound: When its kubelet.sock was there.
        listening: When it listened on it.
    """

    def __init__(self, root: Path, *, profile: str, start_delay: float, listen_delay: float, deadline: float) -> None:
        self._seen: list[Seen] = []
        self._replies: dict[int, Seen] = {}
        self._asked = 0
        self._socket = root / "device-plugins" / "kubelet.sock"
        before = _identity(self._socket)
        command = [sys.executable, "-m", "kdp_testkit.process", "--root", os.fspath(root), "--profile", profile]
        command += [f"--start-delay={start_delay}", f"--listen-delay={listen_delay}"]
        super().__init__(command, deadline=deadline)
        try:
            bound = self._see_socket(before)
            self.listening = self.event("kubelet listens", lambda seen: seen["event"] == "listening")
            self.bound = min(bound, self.listening)
        except BaseException:
            self.kill()
            raise

    def _see_socket(self, before: object) -> float:
        """Return when the new kubelet.sock was first seen: bound, and not yet listened on."""
        end = self.started + self._deadline
        while _identity(self._socket) in (None, before):
            if self._process.poll() is not None:
                raise DemoFailed(f"the simulated kubelet ended at once: {' '.join(self.errors[-1:])}")
            if time.monotonic() > end:
                raise DemoFailed(f"kubelet.sock is not there: not within {self._deadline:g} s of the kubelet's start")
            time.sleep(0.0005)
        return time.monotonic()

    def event(self, what: str, is_meant: Callable[[Seen], bool], *, after: float = 0.0) -> float:
        """Wait for an event and return its time.

        Args:
            what: What is waited for, for the sentence if it does not come.
            is_meant: Whether an event is the one.
            after: Only events later than this count.
        """

        def find() -> float | None:
            times = (seen["t"] / 1e9 for seen in self._seen if seen["t"] / 1e9 >= after and is_meant(seen))
            return next(times, None)

        self._wait(lambda: find() is not None, what)
        with self._changed:
            found = find()
        assert found is not None
        return found

    def registered(self, resource: str) -> float:
        """Wait until a resource is registered and its stream is open; return when it was registered."""
        at = self.event(
            f"{resource} registered", lambda seen: seen["event"] == "registered" and seen["resource"] == resource
        )
        self.event(
            f"{resource}: a stream of devices", lambda s: s["event"] == "stream_opened" and s["resource"] == resource
        )
        return at

    def told(self, resource: str, *, healthy: int, unhealthy: int, after: float = 0.0) -> float:
        """Wait until the kubelet was sent a list with so many devices of a resource; return when it had it."""
        return self.event(
            f"{resource}: a list with {healthy} healthy and {unhealthy} unhealthy devices",
            lambda seen: (
                seen["event"] == "list_received"
                and (seen["resource"], seen["healthy"], seen["unhealthy"]) == (resource, healthy, unhealthy)
            ),
            after=after,
        )

    def node(self) -> dict[str, tuple[int, int]]:
        """Return what the node shows: resource -> (capacity, allocatable)."""
        status = self.ask("node_status")
        return {name: (count, status["allocatable"][name]) for name, count in sorted(status["capacity"].items())}

    def ask(self, operation: str, **arguments: Any) -> Seen:
        """Have an operation done and return the answer.

        Raises:
            DemoFailed: It was refused; the text says why.
        """
        self._asked += 1
        number = self._asked
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": operation, "id": number, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise DemoFailed(f"the simulated kubelet cannot be asked: {error.strerror}") from error
        self._wait(lambda: number in self._replies, f"the simulated kubelet's answer to '{operation}'")
        with self._changed:
            reply = self._replies.pop(number)
        if not reply["ok"]:
            raise DemoFailed(f"the simulated kubelet says {reply['reason']}: {reply['message']}")
        return reply

    @override
    def _take(self, line: str) -> None:
        seen: Seen = json.loads(line)
        if seen["event"] == "reply":
            self._replies[seen["id"]] = seen
        else:
            self._seen.append(seen)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns
