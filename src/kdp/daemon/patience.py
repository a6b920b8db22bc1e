"""`PatientHandler`: writes log lines to stderr, and does not wait for whoever reads it.

A pipe that nobody reads, as that of a runtime whose disk is full, blocks who writes to it; while one thread waits there with
the handler's lock all others wait for that, and the loop with them. Here a line that stderr does not take at once waits in
memory, until the next line or the process's end.
"""

from __future__ import annotations

import collections
import logging
import os
import select
import sys
import time
from typing import final

from typing_extensions import override

__all__ = ["PatientHandler"]

_MOST_BYTES = 256 << 10
"""What waits at most; beyond it the oldest lines go, and their number is told."""

_LAST_WAIT = 0.3
"""Seconds for which the lines that still wait at the process's end are tried."""


@final
class PatientHandler(logging.StreamHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """A handler for `sys.stderr` as it is now; where that is no file, a `logging.StreamHandler` and no more."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)  # pyright: ignore[reportUnknownMemberType] - generic in the stubs only
        self._begun = b""
        self._waiting: collections.deque[bytes] = collections.deque()
        self._size = 0
        self._lost = 0
        try:
            # Our own: the number of one that a library closes is soon another file's.
            self._file: int | None = os.dup(sys.stderr.fileno())
        except (OSError, ValueError, AttributeError):
            self._file = None

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if self._file is None:
            super().emit(record)
            return
        try:
            line = self._encoded(record)
        except Exception as error:  # noqa: BLE001 - whatever a vendor's arguments do; logging's own word of it would wait
            place = f"{record.pathname}:{record.lineno}"
            line = f"{place}: a log line could not be written ({type(error).__name__})\n".encode(errors="replace")
        self._waiting.append(line)
        self._size += len(line)
        while self._size > _MOST_BYTES and len(self._waiting) > 1:
            self._size -= len(self._waiting.popleft())
            self._lost += 1
        self._write(self._file, 0.0)

    @override
    def flush(self) -> None:
        if self._file is None:
            super().flush()
            return
        self.acquire()
        try:
            self._write(self._file, _LAST_WAIT)
        finally:
            self.release()

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")

    def _write(self, file: int, seconds: float) -> None:
        """Write what waits, as far as stderr takes it within so many seconds."""
        until = time.monotonic() + seconds
        ready = select.poll()
        ready.register(file, select.POLLOUT)
        try:
            while self._begun or self._next():
                if not ready.poll(max(0.0, 1000 * (until - time.monotonic()))):
                    return
                # A pipe that is ready takes so much without waiting for its reader.
                self._begun = self._begun[os.write(file, self._begun[: select.PIPE_BUF]) :]
        except BlockingIOError:
            return
        except OSError:  # there is nobody to tell
            self._begun = b""
            self._waiting.clear()
            self._size = 0

    def _next(self) -> bool:
        """Begin with the next line; before the first one after a loss comes the word of it."""
        if not self._waiting:
            return False
        if self._lost:
            record = logging.makeLogRecord(
                {
                    "name": __name__,
                    "levelno": logging.WARNING,
                    "levelname": "WARNING",
                    "msg": f"nobody has read stderr; lines lost: {self._lost}",
                }
            )
            self._lost = 0
            self._begun = self._encoded(record)
        else:
            self._begun = self._waiting.popleft()
            self._size -= len(self._begun)
        return True
