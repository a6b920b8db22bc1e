"""`StderrHandler`: writes log lines to stderr, does not wait for its reader, and may keep the last lines in memory.

A pipe that nobody reads, as that of a runtime whose disk is full, or a terminal, as of a connection that hangs, blocks
who writes to it; while one thread waits there with the handler's lock all others wait for that, and the loop with them.
Here a line that stderr does not take at once waits in memory, until the next line or the process's end.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import select
import sys
import time
from typing import Final, final

from typing_extensions import override

_MOST_BYTES = 256 << 10
"""What waits at most; beyond it the oldest lines go, and their number is told."""

_LAST_WAIT = 0.3
"""Seconds for which the lines that still wait at the process's end are tried."""

MOST_LINES: Final = 256
MOST_BYTES: Final = 64 << 10


def duplicate(file: int) -> int:
    """Return a new descriptor of the file, to which `write_some` writes without waiting.

    Raises:
        OSError: There is no such file.
    """
    if os.isatty(file):
        # One with room for a byte is ready, and a longer line would wait: so it is opened anew, not to wait ever.
        with contextlib.suppress(OSError):
            return os.open(f"/proc/self/fd/{file}", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    return os.dup(file)


def write_some(file: int, data: bytes, seconds: float = 0.0) -> int:
    """Write what is taken within so many seconds, and return how many bytes that was.

    Raises:
        OSError: Nobody can read it.
    """
    until = time.monotonic() + seconds
    ready = select.poll()
    ready.register(file, select.POLLOUT)
    done = 0
    try:
        while done < len(data) and ready.poll(max(0.0, 1000 * (until - time.monotonic()))):
            # A pipe that is ready takes so much without waiting for its reader.
            done += os.write(file, data[done : done + select.PIPE_BUF])
    except BlockingIOError:
        pass
    return done


@final
class RecentLines:
    """The last lines of the log, which commands ask for on the unix socket: in a container nobody has the log.

    At most `MOST_LINES` and `MOST_BYTES` of them. It takes no lock: a handler of a signal, a finalizer, and other
    threads may log while a line is added or the lines are read.
    """

    def __init__(self) -> None:
        self._lines: collections.deque[bytes] = collections.deque(maxlen=MOST_LINES)

    def add(self, line: bytes) -> None:
        """Take a line with its end; of one that is too long, the beginning."""
        self._lines.append(line if len(line) <= MOST_BYTES else line[: MOST_BYTES - 1] + b"\n")
        while sum(map(len, self._copied())) > MOST_BYTES:
            try:
                self._lines.popleft()
            except IndexError:  # another thread took the last one
                return

    def text(self) -> str:
        """Return the lines, the oldest first."""
        return b"".join(self._copied()).decode(errors="replace")

    def _copied(self) -> tuple[bytes, ...]:
        while True:
            try:
                return tuple(self._lines)
            except RuntimeError:  # a finalizer has logged in the middle of it
                continue


@final
class StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """A handler for `sys.stderr` as it is now; where that is no file, a `logging.StreamHandler` and no more.

    Attributes:
        recent: Keeps the last lines in memory as well; None: they are not kept.
    """

    recent: RecentLines | None = None

    def __init__(self) -> None:
        super().__init__(sys.stderr)  # pyright: ignore[reportUnknownMemberType] - generic in the stubs only
        self._begun = b""
        self._waiting: collections.deque[bytes] = collections.deque()
        self._size = 0
        self._lost = 0
        self._process = os.getpid()
        self._is_writing = False
        try:
            # Our own: the number of one that a library closes is soon another file's.
            self._file: int | None = duplicate(sys.stderr.fileno())
        except (OSError, ValueError, AttributeError):
            self._file = None

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if self._file is None:
            super().emit(record)
            if self.recent is not None:
                self.recent.add(self._encoded(record))
            return
        line = self._encoded(record)
        if self.recent is not None:
            self.recent.add(line)
        if os.getpid() != self._process:  # a child has its parent's lines, which its parent writes
            self._process, self._is_writing = os.getpid(), False
            self._clear()
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
            if os.getpid() == self._process:
                self._write(self._file, _LAST_WAIT)
        finally:
            self.release()

    @override
    def format(self, record: logging.LogRecord) -> str:
        try:
            return super().format(record)
        except Exception as error:  # noqa: BLE001 - whatever a vendor's arguments do; logging's own word of it would wait
            text = f"{record.pathname}:{record.lineno}: a log line could not be written ({type(error).__name__})"
            return super().format(logging.LogRecord(__name__, logging.ERROR, __file__, 0, text, None, None))

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")

    def _write(self, file: int, seconds: float) -> None:
        """Write what waits, as far as stderr takes it within so many seconds."""
        if self._is_writing:  # a signal's handler logs, in the middle of this: what goes on below takes its line
            return
        self._is_writing = True
        until = time.monotonic() + seconds
        try:
            while self._begun or self._next():
                self._begun = self._begun[write_some(file, self._begun, until - time.monotonic()) :]
                if self._begun:
                    return
        except OSError:  # there is nobody to tell
            self._clear()
        finally:
            self._is_writing = False

    def _clear(self) -> None:
        self._begun = b""
        self._waiting.clear()
        self._size = 0

    def _next(self) -> bool:
        """Begin with the next line; before the first one after a loss comes the word of it."""
        if not self._waiting:
            return False
        if self._lost:
            text = f"stderr was not read; lines lost: {self._lost}"
            record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
            self._lost = 0
            self._begun = self._encoded(record)
        else:
            self._begun = self._waiting.popleft()
            self._size -= len(self._begun)
        return True
