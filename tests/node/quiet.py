"""Tests that keep a processor busy make room: none runs, and none begins, while a test measures what a node owes.

The tests of a node share two processors among several processes of pytest, so what they agree on is a lock of the
kernel on two files: whoever asks for the machine closes the door first, or three judgements that follow one another
would never leave it free.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

__all__ = ["Quiet"]


@attrs.frozen
class Quiet:
    """Who may be busy.

    Attributes:
        directory: The same for all processes that share the tests.
    """

    directory: Path

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """Be one of many; waits, and blocks, while somebody has the machine for itself, or wants it."""
        with ExitStack() as room:
            with self._locked("door", fcntl.LOCK_SH):
                room.enter_context(self._locked("room", fcntl.LOCK_SH))
            yield

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Have the machine without those; blocks until they have ended."""
        with self._locked("door", fcntl.LOCK_EX), self._locked("room", fcntl.LOCK_EX):
            yield

    @contextmanager
    def _locked(self, name: str, how: int) -> Iterator[None]:
        with (self.directory / f"{name}.lock").open("w") as file:
            fcntl.flock(file, how)
            yield
