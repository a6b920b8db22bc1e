"""What the process says on stderr: one line for each change of state, as text for people or as JSON.

The sentences come from the modules that know them (``logging.getLogger(__name__)``); here is only how they are written.
`configure` is called by `kdp.run` and ``kdp run``, never by `kdp.serve`: inside somebody's program the logs are theirs.

A JSON line has the keys ``ts`` (RFC 3339, UTC), ``level``, ``logger``, ``msg``, those of `EXTRA_KEYS` that the event
carries, and ``exc`` with a traceback. No other key ever appears, so that a log pipeline can rely on the list.

What a message or a key holds was chosen by others: devices, claims, files, libraries. So it is made printable, and cut:
nobody can begin a line of our log, hide one, or turn a terminal's colors. A record is one line. In the text format the
lines of a traceback follow it, each indented by four blanks. So a line that begins with a blank goes on with the record
before, as collectors of logs expect, and an exception's text cannot pass for a record. In the JSON format it is in
``exc``.

Nobody waits for the reader of stderr. A pipe that nobody reads, as that of a runtime whose disk is full, or a terminal,
as of a connection that hangs, blocks who writes to it; while one thread waits there with the handler's lock all others
wait for that, and the loop with them. Here a line that stderr does not take at once waits in memory, until the next
line or the process's end.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import math
import os
import select
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, final

from typing_extensions import override

from ..errors import printable
from ..supervision.log_guard import guard, look

if TYPE_CHECKING:
    from .settings import Settings

logger = logging.getLogger(__name__)

EXTRA_KEYS = {
    "resource": "the extended resource",
    "device_id": "the device",
    "unit": "the physical thing that the device is part of",
    "backend": "the backend's class",
    "hook": "the backend's method",
    "state": "the state that was entered",
    "reason": "why",
    "error": "the error's text",
    "pod": "the pod's namespace and name",
    "rpc": "the call of the protocol",
    "socket": "the path of a socket",
    "path": "a file or directory",
    "address": "where something listens",
    "generation": "which registration of the resource",
    "devices": "how many devices",
    "healthy": "how many of them are healthy",
    "seconds": "how long it took or will take",
}
"""What an event may carry besides its sentence (``extra={...}``), with the meaning."""


MOST_OF_MESSAGE = 4096
"""Characters of a message: container runtimes divide lines of more than 16 KiB, and a character has at most 4 bytes."""

MOST_OF_KEY = 1024
"""Characters of each other key's value."""

MOST_OF_TRACEBACK = 100
"""Lines of a traceback; of a longer one the first and the last are kept."""

MOST_WAITING: Final = 256 << 10
"""What waits at most; beyond it the oldest lines go, and their number is told."""

_LAST_WAIT: Final = 0.3
"""Seconds for which the lines that still wait at the process's end are tried."""

MOST_RECENT_LINES: Final = 256
MOST_RECENT_BYTES: Final = 64 << 10


def _timestamp(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _message(record: logging.LogRecord) -> str:
    return printable(record.getMessage().rstrip("\r\n"), MOST_OF_MESSAGE)


def _extras(record: logging.LogRecord) -> dict[str, object]:
    given = {key: vars(record)[key] for key in EXTRA_KEYS if vars(record).get(key) is not None}
    return {key: _plain(value) for key, value in given.items()}


def _plain(value: object) -> object:
    """Return a value that JSON has, and that is short."""
    if isinstance(value, bool) or (isinstance(value, int) and -(2**63) <= value < 2**64):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return printable(str(value), MOST_OF_KEY)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    if not record.exc_info:
        return []
    lines = formatter.formatException(record.exc_info).split("\n")
    if len(lines) > MOST_OF_TRACEBACK:
        half = MOST_OF_TRACEBACK // 2
        lines[half:-half] = [f"... {len(lines) - 2 * half} lines are left out ..."]
    return [printable(line, MOST_OF_KEY) for line in lines]


@final
class TextFormatter(logging.Formatter):
    """``time LEVEL logger: sentence``; what the sentence does not say of the event's keys follows in brackets."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        message = _message(record)
        missing = [f"{key}={value}" for key, value in _extras(record).items() if str(value) not in message]
        details = f" ({', '.join(missing)})" if missing else ""
        level, name = printable(record.levelname, MOST_OF_KEY), printable(record.name, MOST_OF_KEY)
        line = f"{_timestamp(record)} {level:<7} {name}: {message}{details}"
        return "\n    ".join([line, *_traceback(self, record)])


@final
class JsonFormatter(logging.Formatter):
    """One JSON object a line; the keys are in the module's head."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        import json

        line: dict[str, object] = {
            "ts": _timestamp(record),
            "level": printable(record.levelname.lower(), MOST_OF_KEY),
            "logger": printable(record.name, MOST_OF_KEY),
            "msg": _message(record),
            **_extras(record),
        }
        if traceback := _traceback(self, record):
            line["exc"] = "\n".join(traceback)
        return json.dumps(line, ensure_ascii=False)


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

    At most `MOST_RECENT_LINES` and `MOST_RECENT_BYTES` of them. It takes no lock: a handler of a signal, a finalizer,
    and other threads may log while a line is added or the lines are read.
    """

    def __init__(self) -> None:
        self._lines: collections.deque[bytes] = collections.deque(maxlen=MOST_RECENT_LINES)

    def add(self, line: bytes) -> None:
        """Take a line with its end; of one that is too long, the beginning."""
        self._lines.append(line if len(line) <= MOST_RECENT_BYTES else line[: MOST_RECENT_BYTES - 1] + b"\n")
        while sum(map(len, self._copied())) > MOST_RECENT_BYTES:
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
        while self._size > MOST_WAITING and len(self._waiting) > 1:
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


def configure(settings: Settings, *, keeps_recent: bool = False) -> None:
    """Send the root logger's lines to stderr in the form and from the level that the settings say. Idempotent.

    A program that has given the root logger handlers of its own before keeps them, and gets no second output.

    Args:
        settings: Say form and level.
        keeps_recent: Whether the last lines are kept in memory for `recent`.
    """
    root = logging.getLogger()
    formatter = JsonFormatter() if settings.log_format == "json" else TextFormatter()
    ours = [handler for handler in root.handlers if isinstance(handler, StderrHandler)]
    if not root.handlers:
        ours = [StderrHandler()]
        root.addHandler(ours[0])
        logging.captureWarnings(True)
        threading.excepthook = _log_dead_thread
    for handler in ours:
        handler.setFormatter(formatter)
        handler.recent = (handler.recent or RecentLines()) if keeps_recent else None
    if ours:
        root.setLevel(settings.log_level.upper())
        guard(functools.partial(_restore, ours[0], root.level))
        # asyncio tells which selector it uses, at debug: nobody's question.
        logging.getLogger("asyncio").setLevel(max(logging.INFO, root.level))
        # It tells each request, and a DRA driver has one for each change.
        logging.getLogger("httpx2").setLevel(logging.WARNING if root.level > logging.DEBUG else logging.DEBUG)
        look("the program")
    _release()


class _Early(logging.Handler):
    """Keeps records in memory. At the process's end, it writes them as Python writes them without configuration."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[logging.LogRecord] = []
        self._process = os.getpid()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.held.append(record)
        if os.getpid() != self._process:  # a child that vendor code has forked ends without the interpreter's end
            self.close()

    @override
    def close(self) -> None:
        held, self.held = self.held, []
        for record in held:
            if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
        super().close()


def hold_back() -> None:
    """Keep the lines of kdp until `configure`: earlier, a line has neither a time nor a level."""
    kdp = logging.getLogger("kdp")
    kdp.addHandler(_Early())
    kdp.propagate = False


def _release() -> None:
    """Write the lines that `hold_back` has kept."""
    kdp = logging.getLogger("kdp")
    for early in [each for each in kdp.handlers if isinstance(each, _Early)]:
        kdp.removeHandler(early)
        kdp.propagate = True
        held, early.held = early.held, []
        for record in held:
            logging.getLogger(record.name).handle(record)


def _restore(handler: StderrHandler, level: int, culprit: str) -> None:
    """Switch kdp's log on again if code of a vendor has silenced it, and log each way of that once."""
    root = logging.getLogger()
    ways: list[str] = []
    if logging.root.manager.disable >= logging.WARNING:
        ways.append(f"by logging.disable({logging.getLevelName(logging.root.manager.disable)})")
        logging.disable(logging.NOTSET)
    if handler not in root.handlers and not any(map(_is_seen, root.handlers)):
        ways.append("by removing its handler")
        root.addHandler(handler)
    if root.level > max(level, logging.WARNING):
        ways.append(f"by the root logger's level {logging.getLevelName(root.level)}")
        root.setLevel(level)
    # dictConfig disables existing loggers by default. A copy, since another thread may make a logger meanwhile.
    for name, each in logging.root.manager.loggerDict.copy().items():
        if isinstance(each, logging.Logger) and name.partition(".")[0] == "kdp" and _is_silent(each):
            ways.append("by disabling its loggers")
            each.disabled, each.propagate = False, True
            each.setLevel(logging.NOTSET)
    if not _restored.issuperset(ways):  # a library may do it in each call
        _restored.update(ways)
        logger.warning(
            "%s silenced kdp's log %s; kdp has switched it on again", culprit, " and ".join(dict.fromkeys(ways))
        )


_restored: set[str] = set()


def _is_silent(each: logging.Logger) -> bool:
    is_cut_off = not each.propagate and not each.handlers  # one with a handler of its own is somebody's choice
    return each.disabled or each.level > logging.WARNING or is_cut_off


def _is_seen(handler: logging.Handler) -> bool:
    """Return whether a handler of somebody else writes to stderr or stdout."""
    stream: object = getattr(handler, "stream", None)
    return stream is not None and stream in (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)


def take_over() -> None:
    """Remove what a target's module has made of the log, for example by ``logging.basicConfig``.

    The command ``kdp run`` has options for the log, and programs read it; `kdp.run` leaves a program's own log alone.
    """
    root = logging.getLogger()
    for handler in [each for each in root.handlers if not isinstance(each, StderrHandler)]:
        root.removeHandler(handler)


def recent() -> RecentLines | None:
    """Return the last lines of the log; None: they are not kept, or the log is that of somebody's program."""
    ours = [handler for handler in logging.getLogger().handlers if isinstance(handler, StderrHandler)]
    return ours[0].recent if ours else None


def _log_dead_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or issubclass(args.exc_type, SystemExit):
        return
    name = args.thread.name if args.thread else "unknown"
    info = (args.exc_type, args.exc_value, args.exc_traceback)
    logging.getLogger(__name__).error("thread %s ended with an exception", name, exc_info=info)


def refusal(text: str, *, as_json: bool) -> str:
    """Return the last line of a process that refuses to start, as the logs of a start would have it."""
    if not as_json:
        return f"kdp: {printable(text, MOST_OF_MESSAGE)}\n"
    record = logging.LogRecord("kdp", logging.CRITICAL, __file__, 0, text, None, None)
    return f"{JsonFormatter().format(record)}\n"


def write_now(level: int, message: str) -> None:
    """Write a line without logging's locks and only if stderr takes it at once: for the last words of a process."""
    handlers = logging.getLogger().handlers
    formatter = handlers[0].formatter if handlers else None
    record = logging.LogRecord(__name__, level, __file__, 0, message, None, None)
    line = (formatter or TextFormatter()).format(record)
    write_out(f"{line}\n")


def write_out(text: str, seconds: float = 0.0) -> None:
    """Write what stderr takes within so many seconds, without anybody's locks."""
    with contextlib.suppress(OSError):  # stderr is closed: there is nobody to tell
        file = duplicate(2)
        try:
            write_some(file, text.encode(errors="backslashreplace"), seconds)
        finally:
            os.close(file)
