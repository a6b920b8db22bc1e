"""The table of failures at night: what `test_night` saw, and ``docs/explanation/night.md`` as it is written from that.

``make night`` runs the tests with ``NIGHT_ROWS`` set to a directory, where they leave what they saw, and then calls
this file.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

PAGE: Final = Path(__file__).parents[2] / "docs/explanation/night.md"
ROWS: Final = "NIGHT_ROWS"
NOTHING: Final = "nothing"

HEAD: Final = """\
<!-- Written by `make night` from what tests/node/test_night.py saw. Do not edit. -->

# Three in the morning

Read this page to see which command or source names which cause. Each failure was provoked in a real cluster, with
`--cdi`, `--metrics on`, and `--events on`. `kdp doctor` was asked until it named the cause, and then the other sources
were read. *After* is the time from the failure to the end of the first `kdp doctor` that named it: some failures need
seconds until they are seen. *Place* is the answer's place among the bad ones. *Commands* are those of the answer's
remedy: each was typed in as it is printed, in that state of the node.

"""

ALERTS: Final = """
## Which alert wakes somebody

A Prometheus on the node found the plugin's pod, scraped it each second, and asked kube-state-metrics. It had the rules
of `deploy/prometheus/kdp.rules.yaml`, without the times that they wait. *After* is the time that a rule waits: for so
long its expression must hold.

| failure | alert | after |
| --- | --- | --- |
"""

_MINUTES: Final = ("at once", "1 min", "2 min", "3 min", "5 min", "10 min", "15 min")
_TIME: Final = re.compile(r"^\d{4}-\S+ +")
_MOST: Final = 260
"""Characters of a cell."""


@attrs.frozen(kw_only=True)
class Named:
    """The answer of ``kdp doctor`` that names the cause of a failure.

    Attributes:
        answer: What it says.
        place: How many bad answers there were to it, itself included.
        command: Seconds that the command took.
        after: Seconds from the failure to the end of the first command that named it.
        remedies: How many commands its remedy has, and how many of them a shell takes as they are.
    """

    answer: str
    place: int
    command: float
    after: float
    remedies: tuple[int, int]


@attrs.frozen(kw_only=True)
class Told:
    """What was said of a failure when its cause was known.

    Attributes:
        doctor: By the doctor.
        sources: By each other source, an empty text for nothing.
        alerts: The alerts that Prometheus has raised, each with the time that its rule waits.
    """

    doctor: Named
    sources: Mapping[str, str]
    alerts: Mapping[str, str]


def alerts(title: str) -> set[str]:
    """Return the alerts that the page says a failure raises."""
    [row] = re.findall(rf"^\| {re.escape(title)} \| (`Kdp.+?) \|", PAGE.read_text(), re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row))


def is_written() -> bool:
    """Return whether the page is being written."""
    return bool(os.environ.get(ROWS))


def leave(number: int, title: str, told: Told) -> None:
    """Keep the row of a failure if the page is being written."""
    if is_written():
        place = Path(os.environ[ROWS]) / f"{number:02}.json"
        place.write_text(json.dumps({"title": title, **attrs.asdict(told)}))


def outcomes_of(sources: Mapping[str, str]) -> dict[str, str]:
    """Return of each source whether it said something, and of ``/readyz`` whether it was ready."""
    ready = sources["`/readyz`"].split(":")[0]
    return {name: ready if name == "`/readyz`" else "something" if said else "" for name, said in sources.items()}


def outcomes(title: str) -> dict[str, str]:
    """Return the same of what the page says about a failure."""
    section = PAGE.read_text().split(f"\n### {_heading(title)}\n")[1].split("\n###")[0]
    sources = dict(re.findall(r"^- (.+?): (.+)$", section, re.MULTILINE))
    return outcomes_of({name: "" if said == NOTHING else said for name, said in sources.items()})


def render(directory: Path) -> str:
    """Return the page from what the tests have left."""
    parts = [HEAD, "| failure | `kdp doctor` | place | after | commands |\n| --- | --- | --- | --- | --- |\n"]
    total, good = 0, 0
    more = ["\n## What the other sources said\n"]
    alarms = [ALERTS]
    for file in sorted(directory.glob("*.json")):
        row = json.loads(file.read_text())
        named, sources = Named(**row["doctor"]), dict(row["sources"])
        count, taken = named.remedies
        total, good = total + count, good + taken
        cells = (row["title"], _cell(named.answer), named.place, f"{named.after:.1f} s", f"{taken} of {count}")
        parts.append(f"| {' | '.join(map(str, cells))} |\n")
        waits = sorted(row["alerts"].items(), key=lambda each: (_MINUTES.index(each[1]), each[0]))
        names, times = (", ".join(each) for each in zip(*((f"`{name}`", time) for name, time in waits), strict=True))
        alarms.append(f"| {row['title']} | {names} | {times} |\n")
        more.append(f"\n### {_heading(row['title'])}\n\n")
        sources["log"] = _first(sources["log"])
        more += [f"- {name}: {_cell(text) or NOTHING}\n" for name, text in sources.items()]
    parts.append(f"\nThe remedies of these answers have {total} commands. {good} of them work as they are printed.\n")
    return "".join(parts + alarms + more)


def _heading(title: str) -> str:
    return f"{title[0].upper()}{title[1:]}"


def _first(log: str) -> str:
    """Return the first two different lines of a log, without their times."""
    return "\n".join(list(dict.fromkeys(_TIME.sub("", line) for line in log.splitlines()))[:2])


def _cell(text: str) -> str:
    one = "; ".join(text.split("\n")).replace("|", "\\|").replace("<", "&lt;")
    return one if len(one) <= _MOST else f"{one[:_MOST]}..."


if __name__ == "__main__":
    PAGE.write_text(render(Path(sys.argv[1])))
