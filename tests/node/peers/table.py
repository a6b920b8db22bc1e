"""What is kept of each judgement, and the page that is made of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from kdp_testkit.conformance import CHECKS

__all__ = ["DATA", "PAGE", "Judgement", "page", "read", "write"]

_EXPLANATION: Final = Path(__file__).resolve().parents[3] / "docs" / "explanation"
DATA: Final = _EXPLANATION / "peers.json"
PAGE: Final = _EXPLANATION / "peers.md"

_MARKS: Final = {"passed": "✓", "failed": "✗", "not_applicable": ""}


@attrs.frozen(kw_only=True)
class Judgement:
    """What the kit said of one plugin.

    Attributes:
        name: The plugin.
        version: Of the plugin.
        remark: How it was run here.
        date: The day.
        profile: Which kubelet was simulated.
        seconds: How long the kit took.
        passed: The ids of the checks that it passed.
        failed: What was seen in the others, by id.
    """

    name: str
    version: str
    remark: str
    date: str
    profile: str
    seconds: float
    passed: Sequence[int]
    failed: Mapping[int, str]

    @classmethod
    def of(cls, report: Mapping[str, Any], **about: Any) -> Judgement:
        """Keep what matters of the kit's JSON report."""
        checks = report["checks"]
        return cls(
            profile=report["profile"],
            passed=[check["id"] for check in checks if check["status"] == "passed"],
            failed={check["id"]: _kept(check["saw"]) for check in checks if check["status"] == "failed"},
            **about,
        )

    def status(self, check: int) -> str:
        """Return the mark of a check."""
        return _MARKS["passed" if check in self.passed else "failed" if check in self.failed else "not_applicable"]


def _kept(saw: str) -> str:
    """Return the first line without what is different each time."""
    return re.sub(r"/tmp/kdp-\w+", "…", saw.partition("\n")[0])[:300]


def read() -> dict[str, Judgement]:
    """Return what was kept, by name."""
    if not DATA.exists():
        return {}
    kept = [
        Judgement(**{**fields, "failed": {int(id): saw for id, saw in fields["failed"].items()}})
        for fields in json.loads(DATA.read_text())
    ]
    return {judgement.name: judgement for judgement in kept}


def write(judgements: Sequence[Judgement]) -> None:
    """Keep them, one check's sentence a line, and write the page."""
    DATA.write_text(json.dumps([attrs.asdict(each) for each in judgements], indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(judgements))


def page(judgements: Sequence[Judgement]) -> str:
    """Return the page."""
    rows = [
        f"| {each.name} | {each.version or 'not told'} | {len(each.passed)} | {len(each.failed)} | "
        f"{each.seconds:.0f} s | {each.date}, {each.profile} | {each.remark} |"
        for each in judgements
    ]
    checks = [
        f"| {check.id} | {check.name} | " + " | ".join(each.status(check.id) for each in judgements) + " |"
        for check in CHECKS
        if any(check.id in each.passed or check.id in each.failed for each in judgements)
    ]
    silent = [
        str(check.id)
        for check in CHECKS
        if not any(check.id in each.passed or check.id in each.failed for each in judgements)
    ]
    stories = [
        f"### {each.name}\n\n" + "\n".join(f"- {id}: {_escaped(saw)}" for id, saw in each.failed.items())
        for each in judgements
        if each.failed
    ]
    return (
        "\n\n".join(
            [
                _HEAD,
                "## Who was judged\n\n"
                "| plugin | version | passed | failed | took | on, kubelet | how it was run |\n"
                "|---|---|---|---|---|---|---|\n" + "\n".join(rows),
                "## Check by check\n\n✓ passed, ✗ failed, empty: not applicable, or not run because it waits long.\n\n"
                f"| id | what holds | {' | '.join(each.name for each in judgements)} |\n"
                f"|---|---|{'---|' * len(judgements)}\n" + "\n".join(checks),
                f"Of these checks nothing could be said about any of them: {', '.join(silent)}.",
                "## What was seen\n\nThe first line of each failed check.",
                *stories,
            ]
        )
        + "\n"
    )


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_")


_HEAD: Final = """\
<!-- written by `make peers`; do not edit -->

# Device plugins by others, before the same kit

Read this page to see what the conformance kit says of plugins that you may know. At the end you can read its table for
a plugin of your own.

The [conformance kit](../how-to/prove-your-plugin.md) was made for any plugin in any language. Here it judges some that
others have written, as programs, by `kdp conformance --quick`. The numbers are the kit's check ids.

How to read it:

- Every plugin here does its work on many clusters. A ✗ says that in one situation the kubelet, \
or the pod that asks for a
  device, is worse off than it could be. It does not say that the plugin is bad.
- Several of them end when something is wrong and leave it to the DaemonSet to start them again. \
That is a way to live; the
  checks on an absent kubelet ask for the other one, because a restarted plugin is away for as long as the kubelet's
  back-off lasts.
- A socket name that never changes was right for years. Kubernetes 1.37 refuses a name that it has on record ([section
  2.5](kubelet.md#2.5) of the contract), which is why the checks on socket names are the ones that most plugins fail.
- A program's hardware cannot be made to fail from outside without levers, \
so all checks on failing and vanishing devices
  are not applicable here, also to kdp's examples. In process they are judged in full.
- Whoever finds himself judged wrongly has found a bug of the kit; please tell us."""
