"""What comes of checks: `CheckResult` of one, `ConformanceReport` of all that were run.

`render` tells a report to people and to programs, as text, JSON, JUnit's XML, or Markdown. It decides nothing.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Final

import attrs

from .checks import ConformanceCheck, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@attrs.frozen(kw_only=True)
class CheckResult:
    """What came of one check.

    Attributes:
        check: The check.
        status: ``passed``, ``failed`` or ``not_applicable``.
        saw: What the kubelet saw; of a check that does not apply, the reason.
        seconds: How long it took.
    """

    check: ConformanceCheck
    status: Status
    saw: str
    seconds: float = 0.0

    @property
    def reasons(self) -> dict[str, str]:
        """What was seen, what was expected, the rule, and the cure."""
        return {"saw": self.saw, "expected": self.check.expected, "rule": self.check.rule, "cure": self.check.cure}

    def in_full(self, *, indent: str = "  ") -> str:
        """Return a failed check as text, with its reasons."""
        lines = [f"{indent}{f'{name}:':<9} {text}" for name, text in self.reasons.items()]
        return "\n".join([f"check {self.check.id}, {self.check.name}", *lines])

    def as_json(self) -> dict[str, object]:
        """Return the result as it stands in the JSON report."""
        return {"id": self.check.id, "name": self.check.name, "status": self.status, **self.reasons}


def _by_id(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    return tuple(sorted(results, key=lambda result: result.check.id))


@attrs.frozen(kw_only=True)
class ConformanceReport:
    """What came of all checks that were run.

    Attributes:
        profile: Which kubelet.
        results: In the order of their ids.
        left_out: Ids that ``quick`` left out because they must wait long.
    """

    profile: str
    results: tuple[CheckResult, ...] = attrs.field(converter=_by_id)
    left_out: tuple[int, ...] = ()

    @property
    def summary(self) -> Mapping[str, int]:
        """How many checks have which status."""
        statuses: tuple[Status, ...] = ("passed", "failed", "not_applicable")
        return {status: len(self.of(status)) for status in statuses}

    def of(self, status: Status) -> tuple[CheckResult, ...]:
        """Return the results with this status."""
        return tuple(result for result in self.results if result.status == status)

    @property
    def is_passed(self) -> bool:
        """Whether no check failed, and at least one passed."""
        return not self.of("failed") and bool(self.of("passed"))

    def as_json(self) -> dict[str, object]:
        """Return the report as a JSON object."""
        return {
            "profile": self.profile,
            "summary": dict(self.summary),
            "checks": [result.as_json() for result in self.results],
        }

    def raise_if_failed(self) -> None:
        """Raise an `AssertionError` that tells every failed check in full, or that nothing was judged.

        Raises:
            AssertionError: A check failed, or none passed.
        """
        if self.is_passed:
            return
        failed = [result.in_full() for result in self.of("failed")]
        raise AssertionError(
            f"kubelet {self.profile}: {len(failed)} of {len(self.results)} checks failed\n" + "\n".join(failed)
            if failed
            else f"kubelet {self.profile}: no check could be judged: "
            + "; ".join(f"{r.check.id}: {r.saw}" for r in self.results[:3])
        )


_SECTIONS: Final = "sections: docs/explanation/kubelet.md in kdp's sources"
"""Where the sections are that the rules of failed checks cite."""

_WORDS: Final[dict[Status, str]] = {"passed": "passed", "failed": "FAILED", "not_applicable": "n/a"}


def render(report: ConformanceReport, output: str) -> str:
    """Return the report in one of `FORMATS`."""
    return {"text": _text, "json": _json, "junit": _junit, "markdown": _markdown}[output](report)


FORMATS: Final = ("text", "json", "junit", "markdown")


def _head(report: ConformanceReport) -> str:
    counts = report.summary
    head = (
        f"kubelet {report.profile}: {counts['passed']} passed, {counts['failed']} failed, "
        f"{counts['not_applicable']} not applicable"
    )
    if report.left_out:
        head += f"; left out because they wait long: {', '.join(map(str, report.left_out))}"
    return head


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _indented(text: str, by: int) -> str:
    return text.replace("\n", "\n" + " " * by)


def text_of(result: CheckResult) -> str:
    """Return one result as in the text report."""
    lines = [f"{result.check.id:>3}  {_WORDS[result.status]:<6}  {result.check.name}"]
    if result.status == "failed":
        lines += [f"{'':13}{f'{name}:':<9} {_indented(text, 23)}" for name, text in result.reasons.items()]
    else:
        lines.append(f"             {_first_line(result.saw)}")
    return "\n".join(lines)


def end_of(report: ConformanceReport) -> str:
    """Return the end of the text report: the counts and the first step."""
    lines = ["", _head(report)]
    if any("section" in result.check.rule for result in report.of("failed")):
        lines = ["", _SECTIONS, *lines]
    if step := _first_step(report):
        lines += ["", step]
    return "\n".join(lines)


def _first_step(report: ConformanceReport) -> str:
    """Return the author's first step: the cure of the first failure, since later checks build on earlier ones."""
    if failed := report.of("failed"):
        check = failed[0].check
        return f"do first: {check.cure} (check {check.id}); then run --only {check.id}"
    if not report.of("passed") and (reasons := report.of("not_applicable")):
        return f"do first: nothing was judged, because {_first_line(reasons[0].saw)} (check {reasons[0].check.id})"
    return ""


def _text(report: ConformanceReport) -> str:
    return "\n".join([*map(text_of, report.results), end_of(report)])


def _json(report: ConformanceReport) -> str:
    return json.dumps(report.as_json(), indent=2)


def _junit(report: ConformanceReport) -> str:
    counts = report.summary
    suite = ET.Element(
        "testsuite",
        name=f"kdp conformance {report.profile}",
        tests=str(len(report.results)),
        failures=str(counts["failed"]),
        skipped=str(counts["not_applicable"]),
        errors="0",
    )
    for result in report.results:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=f"kdp.conformance.{report.profile}",
            name=f"{result.check.id} {result.check.name}",
            time=f"{result.seconds:.3f}",
        )
        if result.status == "failed":
            ET.SubElement(case, "failure", message=_legal(_first_line(result.saw))).text = _legal(
                "\n".join(f"{name}: {text}" for name, text in result.reasons.items())
            )
        elif result.status == "not_applicable":
            ET.SubElement(case, "skipped", message=_legal(_first_line(result.saw)))
        else:
            ET.SubElement(case, "system-out").text = _legal(result.saw)
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode")


def _legal(text: str) -> str:
    """Leave out the control characters that XML 1.0 cannot hold: a program's output may have any."""
    return "".join(char for char in text if char in "\t\n" or (ord(char) >= 32 and not 0xD800 <= ord(char) <= 0xDFFF))


def _markdown(report: ConformanceReport) -> str:
    lines = [_head(report), "", "| id | check | status | saw |", "|---|---|---|---|"]
    for result in report.results:
        saw = _first_line(result.saw).replace("|", "\\|")
        lines.append(f"| {result.check.id} | {result.check.name} | {_WORDS[result.status]} | {saw} |")
    for result in report.of("failed"):
        lines += [
            "",
            f"### {result.check.id}: {result.check.name}",
            "",
            f"- expected: {result.check.expected}",
            f"- rule: {result.check.rule}",
            f"- cure: {result.check.cure}",
            "",
            "```",
            result.saw.replace("```", "'''"),
            "```",
        ]
    if any("section" in result.check.rule for result in report.of("failed")):
        lines += ["", _SECTIONS]
    if step := _first_step(report):
        lines += ["", step]
    return "\n".join(lines)
