"""How a run of the conformance kit is shown while it lasts: on a terminal with the checks that run and their total.

The text report goes to a terminal result by result. A file or a pipe gets it whole and in the order of the ids.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import click
from typing_extensions import override

from kdp.command.streams import shown

from ..conformance.reports import text_of
from ..conformance.runner import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..conformance.checks import ConformanceCheck
    from ..conformance.reports import CheckResult

_ERASE = "\r\x1b[K"
"""Erases the line of a terminal."""


class ShownProgress(Progress):
    """Writes the results one by one, and on a terminal a last line with the running checks.

    Args:
        is_report: Whether the results are the report itself, and go to stdout.
        is_brief: Whether the results go to stderr, one line each.
        has_line: Whether there is a last line with the running checks.

    Attributes:
        results: The results so far.
        is_report: Whether stdout has the results already.
    """

    def __init__(self, *, is_report: bool, is_brief: bool, has_line: bool) -> None:
        self.results: list[CheckResult] = []
        self.is_report = is_report
        self._is_brief = is_brief
        self._has_line = has_line
        self._total = 0
        self._running: list[ConformanceCheck] = []

    @override
    def begin(self, chosen: Sequence[ConformanceCheck]) -> None:
        self._total = len(chosen)
        self._draw("waits for the plugin")

    @override
    def start(self, check: ConformanceCheck) -> None:
        self._running.append(check)
        self._draw()

    @override
    def end(self, result: CheckResult) -> None:
        self.results.append(result)
        self._running = [check for check in self._running if check.id != result.check.id]
        self.finish()
        if self.is_report:
            click.echo(shown(text_of(result)))
        elif self._is_brief:
            click.echo(f"{result.check.id:>3}  {result.status}  {result.check.name}", err=True)
        self._draw()

    def finish(self) -> None:
        """Erase the last line."""
        if self._has_line:
            click.echo(_ERASE, err=True, nl=False)

    def _draw(self, otherwise: str = "") -> None:
        if not self._has_line:
            return
        if self._running:
            # A line has room for one name, and the oldest check takes longest.
            otherwise = f"{', '.join(str(check.id) for check in self._running)} now: {self._running[0].name}"
        line = ", ".join(filter(None, (f"{len(self.results)} of {self._total} checks are done", otherwise)))
        width = shutil.get_terminal_size().columns - 1  # a full line would be broken, and stay
        click.echo(f"{_ERASE}{line[:width]}", err=True, nl=False)


def shown_progress(*, is_text: bool) -> ShownProgress:
    """Return the progress for this process's streams.

    Args:
        is_text: The report is the text for people.
    """
    is_report = is_text and sys.stdout.isatty()
    has_line = sys.stderr.isatty()
    return ShownProgress(is_report=is_report, is_brief=not is_report and (has_line or not is_text), has_line=has_line)
