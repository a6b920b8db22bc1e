"""The table of failures at night: what `test_night` saw, and ``docs/explanation/night.md`` as it is written from that.

``make night`` runs the tests with ``NIGHT_ROWS`` set to a directory, where they leave what they saw, and then calls
this file.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Final

import attrs

PAGE: Final = Path(__file__).parents[2] / "docs/explanation/night.md"
ROWS: Final = "NIGHT_ROWS"

HEAD: Final = """\
<!-- Written by `make night` from what tests/node/test_night.py saw. Do not edit. -->

# Three in the morning

Read this page to see which command or source names which cause. Each failure was provoked in a real cluster, with
`--cdi`, `--metrics on`, and `--events on`. `kdp doctor` was asked until it named the cause, and then the other sources
were read. *After* is the time from the failure to the end of the first `kdp doctor` that named it: some failures need
seconds until they are seen. *Place* is the answer's place among the bad ones.

"""

_TIME: Final = re.compile(r"^\d{4}-\S+ +")
_MOST: Final = 260
"""Characters of a cell."""


@attrs.frozen(kw_only=True)
class Told:
    """What was said of a failure when its cause was known.

    Attributes:
        doctor: The answer of ``kdp doctor`` that names it.
        place: How many bad answers there were to it, itself included.
        command: Seconds that the command took.
        after: Seconds from the failure to the end of the first command that named it.
        probe: What ``/readyz`` said.
        status: The first lines of ``kdp status``, which the status page shows, too.
        metrics: The series that say that something is wrong.
        events: What kdp's Events say.
        log: The log's warnings and errors.
    """

    doctor: str
    place: int
    command: float
    after: float
    probe: str
    status: str
    metrics: str
    events: str
    log: str


def leave(number: int, title: str, told: Told) -> None:
    """Keep what was seen, if the page is being written."""
    if directory := os.environ.get(ROWS):
        (Path(directory) / f"{number:02}.json").write_text(json.dumps({"title": title, **attrs.asdict(told)}))


def render(directory: Path) -> str:
    """Return the page from what the tests have left."""
    parts = [HEAD, "| failure | `kdp doctor` | place | after |\n| --- | --- | --- | --- |\n"]
    more = ["\n## What the other sources said\n"]
    for file in sorted(directory.glob("*.json")):
        row = json.loads(file.read_text())
        title = row.pop("title")
        told = Told(**row)
        parts.append(f"| {title} | {_cell(told.doctor)} | {told.place} | {told.after:.1f} s |\n")
        more.append(f"\n### {title[0].upper()}{title[1:]}\n\n")
        sources = {
            "`/readyz`": told.probe,
            "`kdp status`": told.status,
            "metrics": told.metrics,
            "Events": told.events,
            "log": _first(told.log),
        }
        more += [f"- {name}: {_cell(text) or 'nothing'}\n" for name, text in sources.items()]
    return "".join(parts + more)


def _first(log: str) -> str:
    """Return the first two different lines of a log, without their times."""
    return "\n".join(list(dict.fromkeys(_TIME.sub("", line) for line in log.splitlines()))[:2])


def _cell(text: str) -> str:
    one = "; ".join(text.split("\n")).replace("|", "\\|").replace("<", "&lt;")
    return one if len(one) <= _MOST else f"{one[:_MOST]}..."


if __name__ == "__main__":
    PAGE.write_text(render(Path(sys.argv[1])))
