"""A program that forks a worker and is killed: what it had must end with it, although the worker lives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

__all__ = ["FORK", "Parent", "parent"]

FORK: Final = """
if not os.fork():
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
"""
"""End of a program that imports `os` and `sys`: the worker says its number, and lives until its stdin ends."""


class Parent(subprocess.Popen[str]):
    """The program's process."""

    def line(self) -> str:
        """Return the next line that it or its worker prints."""
        assert self.stdout is not None
        return self.stdout.readline()

    def tell(self, line: str) -> None:
        """Send a line to its stdin."""
        assert self.stdin is not None
        self.stdin.write(f"{line}\n")
        self.stdin.flush()

    def kill_beside(self, worker: int) -> None:
        """Kill the program, and make sure that its worker lives."""
        self.kill()
        self.wait(10)
        os.kill(worker, 0)


@contextmanager
def parent(source: str, *arguments: str) -> Generator[Parent]:
    """Run a program with arguments; neither it nor its worker outlives the context."""
    command = [sys.executable, "-c", source, *arguments]
    process = Parent(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()  # closes the worker's stdin, and it ends
