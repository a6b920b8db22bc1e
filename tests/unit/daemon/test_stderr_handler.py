"""Lines for a pipe that nobody reads: the real thing, filled until the kernel would block."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import attrs
import pytest

from kdp.daemon.logs import StderrHandler
from kdp_testkit.patience import PATIENCE


@attrs.frozen
class Pipe:
    """What is written to stderr, and the logger that writes there."""

    reader: int
    logger: logging.Logger
    handler: StderrHandler

    def read(self) -> list[str]:
        """Return the lines that are there now."""
        found = b""
        while True:
            try:
                found += os.read(self.reader, 1 << 20)
            except BlockingIOError:
                return found.decode().splitlines()


@contextlib.contextmanager
def logging_to(handler: logging.Handler) -> Iterator[logging.Logger]:
    logger = logging.getLogger("tests.patience")
    logger.propagate = False
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with open(writer, "w") as stderr, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", stderr)
        handler = StderrHandler()
    with logging_to(handler) as logger:
        yield Pipe(reader, logger, handler)
    os.close(reader)


def record(text: str, pipe: Pipe, *args: object) -> None:
    """Log past the logger, whose lines pytest collects as well: it could not take these."""
    pipe.handler.handle(logging.LogRecord("widgets", logging.WARNING, "/x/widgets.py", 7, text, args, None))


def test_what_is_read_comes_at_once(pipe: Pipe) -> None:
    pipe.logger.warning("one")
    assert pipe.read() == ["one"]
    record("two \udc80", pipe)
    assert pipe.read() == ["two \\udc80"]


def test_a_line_that_cannot_be_made_is_told(pipe: Pipe) -> None:
    record("%d", pipe, "text")
    assert pipe.read() == ["/x/widgets.py:7: a log line could not be written (TypeError)"]


def test_nobody_waits_for_who_does_not_read_and_no_line_is_torn(pipe: Pipe) -> None:
    """The pipe holds 64 KiB; a thread that blocks would not come back."""
    lines = [f"{number} {'x' * 5000}" for number in range(30)]

    def write() -> None:
        for line in lines:
            pipe.logger.warning("%s", line)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    found = pipe.read()
    assert found[:-1] == lines[: len(found) - 1]
    read = "".join(found[-1:])
    lines = lines[len(found) - 1 :]
    while read != "".join(lines):
        pipe.handler.flush()
        more = pipe.read()
        assert more
        read += "".join(more)


def test_the_oldest_lines_go_and_their_number_is_told(pipe: Pipe) -> None:
    lines = [f"{number} {'x' * 1000}" for number in range(1000)]
    for line in lines:
        pipe.logger.warning("%s", line)
    found = pipe.read()
    while not found or found[-1] != lines[-1]:
        pipe.handler.flush()
        found += pipe.read()
    numbers = [int(line.split()[0]) for line in found if line[:1].isdigit() and len(line) >= 1002]
    (told,) = [int(line.rpartition(" ")[2]) for line in found if "lines lost" in line]
    assert told == 1000 - len(numbers)
    assert told > 0
    assert numbers == sorted(numbers)


LAST_WORDS = """
import logging
from kdp.daemon.logs import StderrHandler
logging.getLogger().addHandler(StderrHandler())
for number in range(100):
    logging.warning("%s", f"{number} " + 5000 * "x")
print("written", flush=True)
"""


def test_the_lines_that_wait_at_the_end_are_written_if_somebody_reads() -> None:
    """And the process ends if nobody does."""
    command = [sys.executable, "-c", LAST_WORDS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, lines = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "written\n")
    assert lines.splitlines()[-1].startswith("99 ")
    unread, writer = os.pipe()
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout) == (0, "written\n")
    for descriptor in (unread, writer):
        os.close(descriptor)


LINES_FOR_A_TERMINAL = """
import logging
from kdp.daemon.logs import StderrHandler
logging.getLogger().addHandler(StderrHandler())
for number in range(2000):
    logging.warning("%s", f"{number} " + 150 * "x")
print("written", flush=True)
"""


def test_a_terminal_that_nobody_reads_does_not_hold_a_line() -> None:
    """It is ready with room for a byte, and waited for room for the line, with the lock."""
    unread, terminal = os.openpty()
    command = [sys.executable, "-c", LINES_FOR_A_TERMINAL]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout) == (0, "written\n")
    assert os.read(unread, 4).startswith(b"0 xx")
    for descriptor in (unread, terminal):
        os.close(descriptor)


def test_a_child_does_not_write_its_parents_lines(pipe: Pipe) -> None:
    lines = [f"{number} {'x' * 5000}" for number in range(20)]
    for line in lines:
        pipe.logger.warning("%s", line)
    found = pipe.read()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            record("of the child", pipe)
            pipe.handler.flush()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert pipe.read() == ["of the child"]
    text = "".join(found)
    while text != "".join(lines):
        pipe.handler.flush()
        more = pipe.read()
        assert more
        text += "".join(more)


def test_what_a_signals_handler_logs_in_the_middle_of_a_line_is_one_line(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def interrupted(file: int, data: bytes) -> int:
        written = write(file, data)
        monkeypatch.setattr(os, "write", write)
        pipe.logger.warning("of the handler")
        return written

    monkeypatch.setattr(os, "write", interrupted)
    pipe.logger.warning("of the program")
    assert pipe.read() == ["of the program", "of the handler"]
