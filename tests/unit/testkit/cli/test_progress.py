"""What a run of the kit shows while it lasts."""

from __future__ import annotations

import pytest

from kdp_testkit.cli.progress import ShownProgress
from kdp_testkit.conformance import CHECKS, CheckResult

FIRST, SECOND = CHECKS[0], CHECKS[3]


def _run(progress: ShownProgress) -> None:
    progress.begin([FIRST, SECOND])
    progress.start(FIRST)
    progress.start(SECOND)
    progress.end(CheckResult(check=SECOND, status="passed", saw="2 devices"))
    progress.end(CheckResult(check=FIRST, status="failed", saw="nobody listened\nthe log"))
    progress.finish()


def test_a_terminal_shows_the_total_what_runs_and_each_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _run(ShownProgress(is_report=True, is_brief=False, has_line=True))
    output, errors = capsys.readouterr()
    drawn = [line for line in errors.split("\r") if line]
    assert drawn == [
        "0 of 2 checks are done, waits for the plugin",
        f"0 of 2 checks are done, 1 now: {FIRST.name}",
        f"0 of 2 checks are done, 1, 4 now: {FIRST.name}"[:79],
        f"1 of 2 checks are done, 1 now: {FIRST.name}",
        "2 of 2 checks are done",
    ]
    assert output.startswith(
        "  4  passed  the first list comes at once and is complete\n             2 devices\n  1  FAILED"
    )
    assert FIRST.cure in output


def test_a_report_in_a_file_has_one_line_a_verdict_besides_it(capsys: pytest.CaptureFixture[str]) -> None:
    _run(ShownProgress(is_report=False, is_brief=True, has_line=False))
    output, errors = capsys.readouterr()
    assert (output, errors) == ("", f"  4  passed  {SECOND.name}\n  1  failed  {FIRST.name}\n")


def test_a_pipe_gets_the_report_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    _run(ShownProgress(is_report=False, is_brief=False, has_line=False))
    assert capsys.readouterr() == ("", "")
