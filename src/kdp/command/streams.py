"""stdout and stderr of the command: neither can end it, and stdout can be the command's alone (`document`).

What cannot be written is dropped, and told when all is done: with a sentence and exit code 1, or not at all where the
reader has closed its end of the pipe (``kdp devices ... | head -1``): that is its choice, and the exit code is what it
would have been.
"""

from __future__ import annotations

import io
import itertools
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO

from typing_extensions import override

from ..errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed import ReadableBuffer
    from rich.console import Console
    from rich.table import Table


_MOST_OF_LINE = 8192
"""Characters of a line, or of a cell of a table: a list of many devices is a long one."""


class _Descriptor(io.FileIO):
    """Takes everything; `problem` is why some of it is lost."""

    problem: OSError | None = None

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)

    @override
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            while (written := super().write(data)) is None:  # our parent made it non-blocking
                ready = select.poll()  # unlike `select.select` it takes descriptors beyond 1,023
                ready.register(self, select.POLLOUT)
                ready.poll()
            return written
        except OSError as error:
            self.problem = error
            return memoryview(data).nbytes


_stdout: _Descriptor | None = None
_own: TextIO | None = None
"""What `document` returned. A caller in this process, such as click's test runner, reads its file later, and
without a reference it would be closed."""


def prepare() -> None:
    """Take over stdout and stderr of this process."""
    global _stdout
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file would get its number, and what is written to stderr would go there
            os.open(os.devnull, os.O_RDONLY)
    _stdout = _Descriptor(os.dup(1))
    sys.stdout = _text(_stdout, sys.stdout, line_buffering=_stdout.isatty())
    sys.stderr = _text(_Descriptor(2), sys.stderr, line_buffering=True)


def document() -> TextIO:
    """Return stdout for what the command itself says; what anybody else prints from now on goes to stderr."""
    global _own
    own = _own = sys.stdout
    sys.stdout = sys.stderr
    if _stdout is not None:
        os.dup2(2, 1)  # for C code and child processes
    return own


def finish(code: int | str | None) -> int | str | None:
    """Return the exit code; what was to be written to stdout and could not be is told."""
    if _stdout is None or _stdout.problem is None or isinstance(_stdout.problem, BrokenPipeError):
        return code
    sys.stderr.write(f"kdp: stdout cannot be written ({_stdout.problem.strerror}); give another place\n")
    return code or 1


def end_now(code: int) -> None:
    """Write what is left and end the process without its threads. It does nothing in a caller's process.

    For a command that gave up on a call: its thread is in C code, which may not survive the interpreter's own end.
    """
    if _stdout is None:
        return
    (_own or sys.stdout).flush()
    end = finish(code)
    sys.stderr.flush()
    os._exit(end if isinstance(end, int) else 1)


def console(file: TextIO) -> Console:
    """Return what writes tables there. A pipe has no width: lines there are as long as they need to be for grep."""
    from rich.console import Console

    return Console(file=file, markup=False, highlight=False, width=None if file.isatty() else 10_000)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]], styles: Iterable[str] = ()) -> Table:
    """Return a table without lines; a row has the style of its place, or none. What does not print is escaped."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        made.add_column(head, overflow="fold")
    for row, style in zip(rows, itertools.chain(styles, itertools.repeat("")), strict=False):
        made.add_row(*(Text(printable(cell, _MOST_OF_LINE), style=style) for cell in row))
    return made


def shown(text: str) -> str:
    """Return a text of several lines with everything escaped that does not print."""
    return "\n".join(printable(line, _MOST_OF_LINE) for line in text.split("\n"))


def _text(descriptor: _Descriptor, before: TextIO | None, *, line_buffering: bool) -> TextIO:
    return io.TextIOWrapper(
        io.BufferedWriter(descriptor),
        encoding=before.encoding if before else "utf-8",
        errors="backslashreplace",
        line_buffering=line_buffering,
    )
