"""The table of the comparison in the documentation: every scenario on every version, every rule that was broken.

Each test of the comparison leaves a row in the directory that ``SIMULATION_PAGE_ROWS`` names. ``make simulation`` runs
these tests, and then calls this file, which writes ``docs/explanation/simulation.md`` from the rows only.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import attrs
import cattrs

from .nodekit import MINORS

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "simulation.md"
ROWS: Final = "SIMULATION_PAGE_ROWS"
"""The environment variable that names the directory where rows are left."""


@attrs.frozen
class Row:
    """What one test saw.

    Attributes:
        minor: On which version.
        scenario: What was played.
        says: The rule that was broken; empty: none was.
        title: The scenario's title.
        passed: Both were seen alike, or the broken rule was noticed.
    """

    minor: str
    scenario: str
    says: str
    title: str
    passed: bool


def leave(row: Row) -> None:
    """Leave a row for the table, if one is being made."""
    directory = os.environ.get(ROWS)
    if directory:
        name = f"{row.minor}-{zlib.crc32(f'{row.scenario} {row.says}'.encode()):08x}.json"
        Path(directory, name).write_text(json.dumps(attrs.asdict(row)))


def page(rows: Iterable[Row]) -> str:
    """Return the page."""
    alike: dict[str, dict[str, Row]] = {}
    broken: list[Row] = []
    for row in rows:
        if row.says:
            broken.append(row)
        else:
            alike.setdefault(row.scenario, {})[row.minor] = row
    plays = sum(len(each) for each in alike.values())
    same = sum(row.passed for each in alike.values() for row in each.values())
    noticed = sum(row.passed for row in broken)
    said = [_BEGIN.format(plays=plays, same=same, broken=len(broken), noticed=noticed)]
    said.append(f"| scenario | what happens | {' | '.join(minor.release for minor in MINORS)} |")
    said.append("| --- | --- |" + " --- |" * len(MINORS))
    for scenario, each in sorted(alike.items()):
        said.append(f"| `{scenario}` | {next(iter(each.values())).title} | {_verdicts(each)} |")
    said.append(_BROKEN)
    for row in sorted(broken, key=lambda row: row.says):
        verdict = "noticed" if row.passed else "**not noticed**"
        said.append(f"| {row.says} | `{row.scenario}` | {row.minor} | {verdict} |")
    return "\n".join(said) + "\n"


def _verdicts(each: Mapping[str, Row]) -> str:
    return " | ".join(
        ("alike" if each[minor.name].passed else "**differs**") if minor.name in each else "not played"
        for minor in MINORS
    )


_BEGIN: Final = """\
<!-- Written by `make simulation` from what the comparison in tests/node saw. Do not edit. -->

# The simulated kubelet beside the real ones

Read this page before you rely on a test with the simulated kubelet. At the end you know what was compared with
real kubelets, and what was not.

`kdp.testing.SimulatedKubelet` is a model. \
What it is worth is shown by playing one scenario on it and on the kubelet's own
code (device manager, topology manager, admission, plugin watcher, pod-resources and pods API), \
and by comparing what was
seen: the ordered calls that plugins got with their arguments, every error text, \
what each container was given, capacity and
allocatable after each step, and the pods whose status is written again. \
How it is done, and what is taken as equal, is told
in [tests/node](../../tests/node/README.md).

In the run that wrote this page {same} of {plays} plays were seen alike, \
and {noticed} of {broken} broken rules were noticed.
The profile `k132` is not compared with anything: it is written from reading 1.32's code, and is labelled unproven.

## Scenarios
"""

_BROKEN: Final = """
## Rules that were broken

That the comparison can fail is shown by breaking one rule of the simulation at a time. It must then be seen.

| rule | scenario | on | |
| --- | --- | --- | --- |"""


if __name__ == "__main__":
    found = sorted(Path(sys.argv[1]).glob("*.json"))
    PAGE.write_text(page(cattrs.structure(json.loads(path.read_text()), Row) for path in found))
    print(f"{PAGE.name}: {len(found)} rows")
