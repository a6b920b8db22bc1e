"""Processes that are measured: started, asked, watched through /proc, and always ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

__all__ = ["REPOSITORY", "Process", "descriptors", "memory", "processor", "program", "switches"]

REPOSITORY = Path(__file__).resolve().parent.parent

_ENVIRONMENT = {
    "GRPC_VERBOSITY": "NONE",
    # Ours first: another tree of kdp can be measured by PYTHONPATH=/other/src.
    "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(REPOSITORY)])),
    "PYTHONUNBUFFERED": "1",
}

# Byte code must be cached after the first start, as that of an installed plugin is.
_NOT_INHERITED = ("KDP_", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")


def program(module: str, *arguments: str) -> list[str]:
    """Return the command line of one of `programs`.

    A module is imported, so its byte code is cached, as that of an installed plugin is.
    """
    return [sys.executable, "-c", f"from benchmarks.programs.{module} import main; main()", *arguments]


class Process:
    """A child that prints JSON lines; every line is kept with the time of its arrival.

    Use it as a context manager: leaving it ends the child, by SIGKILL if it does not end by itself.

    Args:
        command: The command line.
        environment: Added to ours; variables ``KDP_*`` of ours are not handed on.
        log: Where its stderr goes; None: nowhere.
        folder: Where it runs.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        folder: Path = REPOSITORY,
    ) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
        stderr = subprocess.DEVNULL if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            self.started = time.monotonic()
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**kept, **_ENVIRONMENT, **(environment or {})},
                cwd=folder,
            )
        finally:
            if stderr != subprocess.DEVNULL:
                os.close(stderr)
        self.pid = self._child.pid
        self.lines: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            try:
                document = json.loads(line)
            except ValueError:
                continue
            with self._news:
                self.lines.append(document)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def say(self, **document: Any) -> None:
        """Write a JSON line to its stdin."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(document).encode() + b"\n")
        self._child.stdin.flush()

    def wait_line(
        self, wanted: Callable[[dict[str, Any]], bool], *, after: int = 0, timeout: float = 20.0
    ) -> dict[str, Any] | None:
        """Return the first line from number ``after`` on that is wanted; None: there was none in time."""
        until = time.monotonic() + timeout
        seen = after
        with self._news:
            while True:
                for line in self.lines[seen:]:
                    if wanted(line):
                        return line
                seen = len(self.lines)
                left = until - time.monotonic()
                if left <= 0 or not self._news.wait(left):
                    return None

    def event(self, name: str, *, after: int = 0, timeout: float = 20.0, **fields: Any) -> dict[str, Any]:
        """Return the first event of this name with these fields from line number ``after`` on.

        Raises:
            TimeoutError: There was none in time.
        """
        line = self.wait_line(
            lambda line: line.get("event") == name and all(line.get(key) == value for key, value in fields.items()),
            after=after,
            timeout=timeout,
        )
        if line is None:
            raise TimeoutError(f"process {self.pid} did not tell of {name} {fields or ''} within {timeout:g} s")
        return line

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._child.poll() is None

    def terminate(self, timeout: float = 10.0) -> tuple[float, int]:
        """Send SIGTERM; return the seconds until it ended, and its exit code.

        Raises:
            TimeoutError: It did not end.
        """
        began = time.monotonic()
        self._child.send_signal(signal.SIGTERM)
        while self._child.poll() is None:
            if time.monotonic() - began > timeout:
                raise TimeoutError(f"process {self.pid} did not end within {timeout:g} s")
            time.sleep(0.001)
        return time.monotonic() - began, self._child.returncode

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._child.send_signal(number)

    def end(self) -> None:
        """End it in any case. Idempotent."""
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(3.0)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        self._reader.join(5.0)
        self._child.stdout.close()


def memory(pid: int, field: str = "VmRSS") -> float:
    """Return a figure of /proc/PID/status in MB (2^20 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def processor(pid: int) -> float:
    """Return how many seconds of processor time a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descriptors(pid: int) -> int:
    """Return how many file descriptors a process has."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def switches(pid: int) -> dict[int, int]:
    """Return the voluntary context switches of each thread: how often it went to sleep, so how often it woke."""
    found: dict[int, int] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                found[int(task.name)] = int(line.split()[1])
    return found
