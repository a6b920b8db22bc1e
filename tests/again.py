"""``--again``: a test that failed beside others is run once more, alone, when all have run.

If it passes then, ``FLAKY`` and its name go to the file that ``FLAKY_TESTS`` names (default: standard output), and
the run goes on. `.ci/run` counts and prints them: they are tests that depend on what else the machine does. Mend each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

MOST: Final = 3
"""More failures than these are no accident: nothing is run again."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Run again what failed, after the summary of the run was printed."""
    yield
    config = session.config
    if not config.getoption("--again") or hasattr(config, "workerinput"):
        return
    reporter = cast("TerminalReporter | None", config.pluginmanager.get_plugin("terminalreporter"))
    if session.exitstatus != pytest.ExitCode.TESTS_FAILED or reporter is None:
        return
    reports = [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())]
    names = sorted({report.nodeid for report in reports})
    if len(names) > MOST or not all(isinstance(report, pytest.TestReport) for report in reports):
        return
    passed = [_passes(name, config) for name in names]
    if all(passed):
        session.exitstatus = pytest.ExitCode.OK


def _passes(name: str, config: pytest.Config) -> bool:
    print(f"\n== once more, alone: {name}", flush=True)
    options = ["--no-skips"] if config.getoption("--no-skips") else []
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *options, name]
    try:
        subprocess.run(command, cwd=config.rootpath, check=True, timeout=600)
    except subprocess.SubprocessError as failed:
        print(f"it failed again: {failed}", flush=True)
        return False
    with Path(os.environ.get("FLAKY_TESTS", "/dev/stdout")).open("a") as file:
        file.write(f"FLAKY {name}\n")
    return True
