"""The report for people and for programs: text, JSON, JUnit's XML, Markdown. Nothing here decides anything."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .reports import CheckResult, ConformanceReport
    from .verdicts import Status

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


def _text(report: ConformanceReport) -> str:
    lines: list[str] = []
    for result in report.results:
        lines.append(f"{result.check.id:>3}  {_WORDS[result.status]:<6}  {result.check.name}")
        if result.status == "failed":
            lines += [
                f"             saw:      {_indented(result.saw, 23)}",
                f"             expected: {result.check.expected}",
                f"             rule:     {result.check.rule}",
                f"             cure:     {result.check.cure}",
            ]
        else:
            lines.append(f"             {_first_line(result.saw)}")
    if any("section" in result.check.rule for result in report.of("failed")):
        lines += ["", _SECTIONS]
    return "\n".join([*lines, "", _head(report)])


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
            ET.SubElement(case, "failure", message=_legal(_first_line(result.saw))).text = _legal(_details(result))
        elif result.status == "not_applicable":
            ET.SubElement(case, "skipped", message=_legal(_first_line(result.saw)))
        else:
            ET.SubElement(case, "system-out").text = _legal(result.saw)
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode")


def _legal(text: str) -> str:
    """Leave out the control characters that XML 1.0 cannot hold: a program's output may have any."""
    return "".join(char for char in text if char in "\t\n" or (ord(char) >= 32 and not 0xD800 <= ord(char) <= 0xDFFF))


def _details(result: CheckResult) -> str:
    return f"saw: {result.saw}\nexpected: {result.check.expected}\nrule: {result.check.rule}\ncure: {result.check.cure}"


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
    return "\n".join(lines)
