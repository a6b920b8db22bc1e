"""What is kept of each judgement, and the page that is made of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from kdp_testkit.conformance import CHECKS

from .evidence import EVIDENCE
from .roster import NAMES

__all__ = ["DATA", "PAGE", "Judgement", "in_order", "page", "read", "write"]

_EXPLANATION: Final = Path(__file__).resolve().parents[3] / "docs" / "explanation"
DATA: Final = _EXPLANATION / "peers"
PAGE: Final = _EXPLANATION / "peers.md"

_MARKS: Final = {"passed": "✓", "failed": "✗", "not_applicable": "n/a", None: ""}


@attrs.frozen(kw_only=True)
class Judgement:
    """The kit's report of one plugin.

    Attributes:
        name: The plugin.
        version: Of the plugin.
        remark: How it was run here.
        date: The day.
        seconds: How long the kit took.
        report: The kit's JSON report, with "…" for the directories that it made.
    """

    name: str
    version: str
    remark: str
    date: str
    seconds: float
    report: Mapping[str, Any]

    @classmethod
    def of(cls, report: str, **about: Any) -> Judgement:
        """Keep the kit's JSON report, without the paths of this machine."""
        return cls(report=json.loads(re.sub(r"/tmp/kdp-[\w-]+", "…", report)), **about)

    @property
    def profile(self) -> str:
        """Which kubelet was simulated."""
        return str(self.report["profile"])

    def of_status(self, status: str) -> dict[int, str]:
        """Return the first line of each check with this status, by id."""
        checks = (check for check in self.report["checks"] if check["status"] == status)
        return {check["id"]: check["saw"].partition("\n")[0][:300] for check in checks}

    def mark(self, id: int) -> str:
        """Return the mark of a check."""
        return _MARKS[next((check["status"] for check in self.report["checks"] if check["id"] == id), None)]

    def count(self, status: str) -> str:
        """Return how many checks have this status; a report from before they were kept has no reasons."""
        return str(self.report["summary"].get(status, "not kept"))


def read() -> dict[str, Judgement]:
    """Return the judgements that were kept, by name."""
    kept = [Judgement(**json.loads(file.read_text())) for file in sorted(DATA.glob("*.json"))]
    return {judgement.name: judgement for judgement in kept}


def in_order(judgements: Mapping[str, Judgement]) -> list[Judgement]:
    """Return those that `make peers` judges first, and then the others."""
    return [judgements[name] for name in (*NAMES, *sorted(judgements.keys() - set(NAMES))) if name in judgements]


def write(judgements: Mapping[str, Judgement]) -> None:
    """Keep each one in a file of its own, and write the page."""
    DATA.mkdir(exist_ok=True)
    for each in judgements.values():
        (DATA / f"{each.name}.json").write_text(json.dumps(attrs.asdict(each), indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(in_order(judgements)))


def page(judgements: Sequence[Judgement]) -> str:
    """Return the page.

    Raises:
        KeyError: A check failed a plugin, and `EVIDENCE` does not say why that is a fault.
    """
    rows = [
        f"| [{each.name}](peers/{each.name}.json) | {each.version or 'not told'} | {each.count('passed')} | "
        f"{each.count('failed')} | {each.count('not_applicable')} | {each.seconds:.0f} s | "
        f"{each.date}, {each.profile} | {each.remark} |"
        for each in judgements
    ]
    checks = [
        f"| {check.id} | {check.name} | " + " | ".join(each.mark(check.id) for each in judgements) + " |"
        for check in CHECKS
    ]
    failed = sorted({id for each in judgements for id in each.of_status("failed")})
    faults = [f"- {id}: {EVIDENCE[id]}" for id in failed]
    stories = [
        f"### {each.name}\n\n" + "\n".join(f"- {id}: {_escaped(saw)}" for id, saw in found.items())
        for each in judgements
        if (found := each.of_status("failed"))
    ]
    return (
        "\n\n".join(
            [
                _HEAD,
                "## Who was judged\n\nThe name leads to the kit's report.\n\n"
                "| plugin | version | passed | failed | not applicable | took | on, kubelet | how it was run |\n"
                "|---|---|---|---|---|---|---|---|\n" + "\n".join(rows),
                "## Check by check\n\n✓ passed, ✗ failed, n/a not applicable, empty: not run, as it waits long.\n\n"
                f"| id | what holds | {' | '.join(each.name for each in judgements)} |\n"
                f"|---|---|{'---|' * len(judgements)}\n" + "\n".join(checks),
                "## Why these are faults\n\nWhat the kubelet does, and where its source is. The sections are those of "
                "the [contract](kubelet.md), whose facts the real device managers have shown.\n\n" + "\n".join(faults),
                "## What was seen\n\nThe first line of each failed check.",
                *stories,
                "## Why a check was not applicable",
                *(_reasons(each) for each in judgements),
            ]
        )
        + "\n"
    )


def _reasons(judgement: Judgement) -> str:
    """Return the reasons of one plugin, each with the ids of its checks."""
    ids: dict[str, list[str]] = {}
    for id, reason in judgement.of_status("not_applicable").items():
        ids.setdefault(reason, []).append(str(id))
    lines = [f"- {', '.join(found)}: {_escaped(reason)}" for reason, found in ids.items()]
    return f"### Not applicable to {judgement.name}\n\n" + ("\n".join(lines) or "The reasons were not kept.")


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
- "Not applicable" has a reason: what the plugin declares or lacks. The reasons are at the end of the page.
- Whoever finds himself judged wrongly has found a bug of the kit; please tell us."""
