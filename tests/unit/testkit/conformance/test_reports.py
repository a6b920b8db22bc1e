from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from kdp_testkit.conformance import CHECKS, CheckResult, ConformanceReport
from kdp_testkit.conformance.checks import Status
from kdp_testkit.conformance.reports import FORMATS, render


def result(number: int, status: Status, saw: str) -> CheckResult:
    return CheckResult(check=CHECKS[number - 1], status=status, saw=saw, seconds=0.5)


REPORT = ConformanceReport(
    profile="k136",
    results=(
        result(33, "failed", "permissions '' | of /dev/x\nwhat the kubelet saw last:\n  <list> \x1b[31m"),
        result(1, "passed", "Register for example.com/x"),
        result(70, "not_applicable", "not yet"),
    ),
    left_out=(5,),
)


def test_json_has_exactly_what_is_promised() -> None:
    report = json.loads(render(REPORT, "json"))
    assert list(report) == ["profile", "summary", "checks"]
    assert list(report["summary"]) == ["passed", "failed", "not_applicable"]
    assert [list(check) for check in report["checks"]] == [
        ["id", "name", "status", "saw", "expected", "rule", "cure"]
    ] * 3
    assert [check["id"] for check in report["checks"]] == [1, 33, 70]


@pytest.mark.parametrize("output", FORMATS)
def test_every_form_tells_the_failure_and_the_counts(output: str) -> None:
    text = render(REPORT, output)
    assert "k136" in text
    assert CHECKS[32].cure[:20] in text
    assert "not yet" in text


def test_junit_is_xml_whatever_a_program_prints() -> None:
    suite = ET.fromstring(render(REPORT, "junit"))  # noqa: S314 - our own text
    assert {case.get("name", "").partition(" ")[0] for case in suite} == {"1", "33", "70"}
    [failure] = suite.iter("failure")
    assert "<list>" in (failure.text or "")
    assert failure.get("message") == "permissions '' | of /dev/x"


def test_markdown_keeps_its_table() -> None:
    [row] = [line for line in render(REPORT, "markdown").splitlines() if line.startswith("| 33 ")]
    assert row.count("|") - row.count("\\|") == 5


def test_what_is_left_out_is_said() -> None:
    assert "left out because they wait long: 5" in render(REPORT, "text")


def test_where_the_sections_of_a_rule_are_is_said_once_and_only_if_a_rule_is_told() -> None:
    line = "sections: docs/explanation/kubelet.md in kdp's sources"
    assert render(REPORT, "text").splitlines().count(line) == 1
    assert line not in render(ConformanceReport(profile="k137", results=(result(1, "passed", "Register"),)), "text")


def test_a_failed_report_raises_with_the_cure() -> None:
    with pytest.raises(AssertionError, match="check 33, Allocate of one device") as raised:
        REPORT.raise_if_failed()
    assert CHECKS[32].cure in str(raised.value)
    assert not REPORT.is_passed


def test_a_report_without_a_verdict_is_no_yes() -> None:
    report = ConformanceReport(profile="k137", results=(result(70, "not_applicable", "not yet"),))
    assert not report.is_passed
    with pytest.raises(AssertionError, match="no check could be judged: 70: not yet"):
        report.raise_if_failed()


@pytest.mark.parametrize("output", ["text", "markdown"])
def test_the_end_says_what_to_do_first(output: str) -> None:
    """The reader of a long report had to find the failure to begin with."""
    failed = ConformanceReport(
        profile="k137", results=(result(33, "failed", "two responses"), result(14, "failed", "no Register came"))
    )
    last = render(failed, output).splitlines()[-1]
    assert last == f"do first: {CHECKS[13].cure} (check 14); then run --only 14"
    nothing = ConformanceReport(profile="k137", results=(result(70, "not_applicable", "not yet"),))
    assert render(nothing, output).splitlines()[-1] == "do first: nothing was judged, because not yet (check 70)"
    passed = ConformanceReport(profile="k137", results=(result(1, "passed", "Register"),))
    assert "do first" not in render(passed, output)
