"""What comes of checks: `CheckResult` of one, `ConformanceReport` of all that were run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .checks import ConformanceCheck
from .verdicts import Status

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

    def in_full(self, *, indent: str = "  ") -> str:
        """Return a failed check as text: what was seen, what was expected, the rule, and the cure."""
        parts = {"saw": self.saw, "expected": self.check.expected, "rule": self.check.rule, "cure": self.check.cure}
        lines = [f"{indent}{f'{name}:':<9} {text}" for name, text in parts.items()]
        return "\n".join([f"check {self.check.id}, {self.check.name}", *lines])

    def as_json(self) -> dict[str, object]:
        """Return the result as it stands in the JSON report."""
        return {
            "id": self.check.id,
            "name": self.check.name,
            "status": self.status,
            "saw": self.saw,
            "expected": self.check.expected,
            "rule": self.check.rule,
            "cure": self.check.cure,
        }


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
