"""What the tests on hardware share: guests, skipped with one sentence where what they are made of is missing."""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import attrs
import pytest

from .vm import Kind, Missing, Outcome, boot

INSIDE = Path(__file__).with_name("inside")
"""Tests for the inside of a guest, which these tests send there."""


class RunInGuest(Protocol):
    """Boot a guest, run a command in it, and return how that ended and the folder with what it wrote into ``/out``."""

    def __call__(
        self,
        kind: Kind,
        command: Sequence[str | Path],
        *,
        limit: float = 180.0,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[Outcome, Path]: ...


class RunTestsInGuest(Protocol):
    """Boot a guest and run a file of `INSIDE` with pytest in it. What fails there fails here, with its console."""

    def __call__(
        self, kind: Kind, name: str, *, limit: float = 400.0, environment: Mapping[str, str] | None = None
    ) -> Path: ...


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder to `make test-hardware`, and what is for the inside of a guest to the guest."""
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        return True
    return True if collection_path == INSIDE and "KDP_GUEST" not in os.environ else None


@pytest.fixture
def run_in_guest(tmp_path_factory: pytest.TempPathFactory) -> RunInGuest:
    """Run commands, each in a guest of its own."""

    def run(
        kind: Kind,
        command: Sequence[str | Path],
        *,
        limit: float = 180.0,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[Outcome, Path]:
        out = tmp_path_factory.mktemp("out")
        try:
            return boot(kind, command, out=out, limit=limit, environment=environment), out
        except Missing as missing:
            pytest.skip(str(missing))

    return run


@pytest.fixture
def run_tests_in_guest(run_in_guest: RunInGuest, record_property: Callable[[str, object], None]) -> RunTestsInGuest:
    """Run tests, each file in a guest of its own; returns the folder with what they wrote into ``/out``."""

    def run(kind: Kind, name: str, *, limit: float = 400.0, environment: Mapping[str, str] | None = None) -> Path:
        outcome, out = run_in_guest(
            kind,
            [
                *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", "--durations=5"),
                *("-p", "anyio", "-p", "kdp_testkit.pytest_plugin"),
                *("-o", "junit_family=xunit1", "--junitxml=/out/report.xml", INSIDE / name),
            ],
            limit=limit,
            # Plugins that pytest finds itself, hypothesis among them, would be compiled anew in each guest.
            environment={"KDP_GUEST": kind.name, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(environment or {})},
        )
        report = out / "report.xml"
        assert report.exists(), f"the guest ran no tests (exit code {outcome.code}):\n{outcome.said}"
        inner = _read(report)
        for figure in inner.figures:
            record_property("figure", figure)
        record_property("figure", f"guest {kind.name}: {outcome.seconds:.1f} s for {len(inner.passed)} tests")
        assert outcome.code == 0, outcome.said
        assert inner.passed, outcome.said
        assert not inner.others, f"not all passed in the guest: {inner.others}\n{outcome.said}"
        return out

    return run


@attrs.frozen
class _Inner:
    """What came of the tests in a guest: which passed, which did not, and what they measured."""

    passed: list[str]
    others: list[str]
    figures: list[str]


def _read(report: Path) -> _Inner:
    inner = _Inner([], [], [])
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - what pytest wrote a moment ago
        ended = [part.tag for part in case if part.tag in ("failure", "error", "skipped")]
        (inner.others if ended else inner.passed).append(case.get("name", "?"))
        figures = [part.get("value", "") for part in case.iter("property") if part.get("name") == "figure"]
        inner.figures.extend(f"in the guest, {figure}" for figure in figures)
    return inner
