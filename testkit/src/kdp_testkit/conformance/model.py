"""What a check is, what comes of it, and the list of all checks.

A check is one scenario of the kubelet contract, section 13, with that section's number as its id; the sections that rules
cite are those of docs/explanation/kubelet.md. It is a small coroutine that plays the scenario and returns what the kubelet
saw; it raises `Failed` with what it saw instead, or `NotApplicable` with the reason why nothing can be said. A check
never passes because it could not look.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import attrs

if TYPE_CHECKING:
    from .scene import Case

__all__ = [
    "CheckResult",
    "ConformanceCheck",
    "ConformanceReport",
    "Failed",
    "NotApplicable",
    "Route",
    "Status",
    "check",
]

Route = Literal["kubelet", "watcher"]
"""How a plugin registers: it calls kubelet.sock, or the kubelet's plugin watcher finds its socket."""

Status = Literal["passed", "failed", "not_applicable"]

Play = Callable[["Case"], Awaitable[str]]

BOTH: tuple[Route, ...] = ("kubelet", "watcher")
KUBELET_SOCK: tuple[Route, ...] = ("kubelet",)
WATCHER: tuple[Route, ...] = ("watcher",)

REGISTRY: dict[int, ConformanceCheck] = {}


class Failed(Exception):
    """The plugin did something else than the rule says; the text is what the kubelet saw."""


class NotApplicable(Exception):
    """The scenario cannot be played with this plugin; the text is the reason."""


@attrs.frozen(kw_only=True)
class ConformanceCheck:
    """One scenario.

    Attributes:
        id: The scenario's number, the same for ever.
        name: What holds, in a few words.
        expected: What the kubelet should see.
        rule: Why, with the section of the contract.
        cure: What the plugin's author does about it.
        play: Plays it.
        routes: The ways of registering for which it has a meaning.
        levers: The levers that it needs.
        waits: Seconds that it must wait for nothing; 0: none. Those that wait are left out by ``quick``.
        lasts: Seconds that it spends mostly waiting, if they are many: it is started first.
        alone: It measures the process, or disturbs others: nothing runs beside it but what only waits.
    """

    id: int
    name: str
    expected: str
    rule: str
    cure: str
    play: Play = attrs.field(repr=False, eq=False)
    routes: tuple[Route, ...] = BOTH
    levers: tuple[str, ...] = ()
    waits: float = 0.0
    lasts: float = 0.0
    alone: bool = False


def check(
    id: int,
    name: str,
    *,
    expected: str,
    rule: str,
    cure: str,
    routes: Sequence[Route] = BOTH,
    levers: Sequence[str] = (),
    waits: float = 0.0,
    lasts: float = 0.0,
    alone: bool = False,
) -> Callable[[Play], Play]:
    """Enter a coroutine into the list of checks; the arguments are `ConformanceCheck`'s."""

    def enter(play: Play) -> Play:
        if id in REGISTRY:
            raise ValueError(f"two checks have the id {id}")
        REGISTRY[id] = ConformanceCheck(
            id=id,
            name=name,
            expected=expected,
            rule=rule,
            cure=cure,
            play=play,
            routes=tuple(routes),
            levers=tuple(levers),
            waits=waits,
            lasts=max(lasts, 0.0 if alone else waits),
            alone=alone,
        )
        return play

    return enter


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
        told = [
            f"check {r.check.id}, {r.check.name}\n  saw:      {r.saw}\n  expected: {r.check.expected}\n"
            f"  rule:     {r.check.rule}\n  cure:     {r.check.cure}"
            for r in self.of("failed")
        ]
        raise AssertionError(
            f"kubelet {self.profile}: {len(told)} of {len(self.results)} checks failed\n" + "\n".join(told)
            if told
            else f"kubelet {self.profile}: no check could be judged: "
            + "; ".join(f"{r.check.id}: {r.saw}" for r in self.results[:3])
        )
