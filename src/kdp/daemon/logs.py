"""What the process says on stderr: one line for each change of state, as text for people or as JSON.

The sentences come from the modules that know them (``logging.getLogger(__name__)``); here is only their form.
`configure` is called by `kdp.run` and ``kdp run``, never by `kdp.serve`: inside somebody's program the logs are theirs.

A JSON line has the keys ``ts`` (RFC 3339, UTC), ``level``, ``logger``, ``msg``, those of `EXTRA_KEYS` that the event
carries, and ``exc`` with a traceback. No other key ever appears, so that a log pipeline can rely on the list.

What a message or a key holds was chosen by others: devices, claims, files, libraries. So it is made printable, and cut:
nobody can begin a line of our log, hide one, or turn a terminal's colors. A record is one line. In the text format the
lines of a traceback follow it, each indented by four blanks. So a line that begins with a blank goes on with the record
before, as collectors of logs expect, and an exception's text cannot pass for a record. In the JSON format it is in
``exc``.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from typing import TYPE_CHECKING, final

from typing_extensions import override

from ..errors import printable
from .stderr_handler import RecentLines, StderrHandler, duplicate, write_some

if TYPE_CHECKING:
    from .settings import Settings

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

MOST_LINES = 100
"""Lines of a traceback; of a longer one the first and the last are kept."""


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
    if len(lines) > MOST_LINES:
        half = MOST_LINES // 2
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
        # asyncio tells which selector it uses, at debug: nobody's question.
        logging.getLogger("asyncio").setLevel(max(logging.INFO, root.level))
        # It tells each request, and a DRA driver has one for each change.
        logging.getLogger("httpx2").setLevel(logging.WARNING if root.level > logging.DEBUG else logging.DEBUG)


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
