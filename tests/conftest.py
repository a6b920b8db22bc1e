"""What all tests share."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.again import pytest_sessionfinish
from tests.loop import Loop

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

__all__ = ["Figure", "pytest_sessionfinish"]

Figure = Callable[[str, float, str], None]

if "KDP_GUEST" not in os.environ:  # a guest runs no property tests, and to import hypothesis takes it ten seconds
    from hypothesis import settings
    from tests.unit.strategies import effort

    # No example has a deadline, and all runs draw the same ones: a busy machine must not fail what is right.
    settings.register_profile("kdp", effort(100))
    settings.load_profile("kdp")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what draws its inputs: `make test` draws a tenth of them, `make test-slow` all.

    With `--share`, leave the other tests that are alike to `make nightly`.
    """
    for item in items:
        if hasattr(getattr(item, "obj", None), "hypothesis") or {"fuzz", "properties"} & {*item.path.stem.split("_")}:
            item.add_marker("drawn")
    if share := config.getoption("--share"):
        part, parts = map(int, share.split("/"))
        chosen = [
            item
            for item in items
            if item.get_closest_marker("alike") is None or zlib.crc32(item.nodeid.encode()) % parts == part
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="a skipped test fails, unless a package source did not answer three times",
    )
    parser.addoption(
        "--share",
        metavar="K/N",
        help="of the tests marked `alike`, run only one in N: those whose number leaves K, as 0/3, 1/3, 2/3",
    )
    parser.addoption("--again", action="store_true", help="run a failed test once more, alone, after all others")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let no test be skipped if the caller wants none to be.

    A level whose packages could not be had says so in a file of its own, `bin/.unanswered`: what lacks them is skipped.
    """
    report = yield
    if report.skipped and item.config.getoption("--no-skips"):
        why = str(call.excinfo.value) if call.excinfo is not None else str(report.longrepr)
        unanswered = any(Path(__file__).parent.glob("*/bin/.unanswered"))  # a level may need what is another's, too
        if not (unanswered and " is missing: " in why):
            report.outcome = "failed"
            report.longrepr = f"skipped, and nothing may be: {why}"
    return report


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """grpc.aio runs on asyncio only, so nothing is tried on trio."""
    return "asyncio", {"loop_factory": Loop}


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """Report a measured figure: ``figure("import kdp, RSS", 17.9, "MB")``.

    A test judges with a generous limit or not at all; what was measured is printed at the end of the run.
    """

    def report(name: str, value: float, unit: str) -> None:
        record_property("figure", f"{name}: {value:.4g} {unit}")

    return report


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print what was measured, from all the processes that shared the tests."""
    lines = sorted(
        str(value)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "figure" and getattr(report, "when", None) == "call"
    )
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
