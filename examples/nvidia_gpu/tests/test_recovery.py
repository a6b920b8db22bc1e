"""When an error is over: the rules of recovery.py as properties, with no hardware and no clock."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kdp_nvidia_gpu.recovery import AGAIN, Recovery
from kdp_nvidia_gpu.xids import Severity, XidPolicy

HOLD = 10.0


class Recovering(RuleBasedStateMachine):
    """Errors, time and looks in any order, beside a model that only keeps what happened when."""

    def __init__(self) -> None:
        super().__init__()
        self.recovery = Recovery(HOLD)
        self.now = 0.0
        self.last: dict[str, float] = {}
        self.kinds: dict[str, set[str]] = {}
        self.looked: dict[str, float] = {}

    @rule(seconds=st.floats(0.1, 20))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=st.sampled_from("ab"), kind=st.sampled_from(["xid-48", "xid-79"]))
    def an_error(self, name: str, kind: str) -> None:
        self.recovery.happened(name, kind, self.now)
        self.last[name] = self.now
        self.kinds.setdefault(name, set()).add(kind)
        self.looked.pop(name, None)

    @rule(problem=st.sampled_from([None, "it is lost"]))
    def looks(self, problem: str | None) -> None:
        for target in self.recovery.due(self.now):
            assert self.now - self.last[target] >= HOLD
            over = self.recovery.looked(target, problem, self.now)
            assert {*over} == (set() if problem else self.kinds[target])
            self.looked[target] = self.now
            if problem is None:
                del self.last[target], self.kinds[target], self.looked[target]

    @invariant()
    def what_is_quiet_is_due(self) -> None:
        expected = {
            target
            for target, last in self.last.items()
            if last + HOLD <= self.now and self.looked.get(target, float("-inf")) + min(AGAIN, HOLD) <= self.now
        }
        assert {*self.recovery.due(self.now)} == expected


TestRecovering = Recovering.TestCase


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "code", "severity"),
    [
        ([], 31, Severity.APPLICATION),
        ([], 9999, Severity.FATAL),
        (["31=fatal"], 31, Severity.FATAL),
        (["all=ignore"], 79, Severity.APPLICATION),
        (["all=ignore", "79=condition"], 79, Severity.CONDITION),
    ],
)
def test_an_admin_changes_the_table(texts: list[str], code: int, severity: Severity) -> None:
    policy = XidPolicy.parse(texts)
    assert policy.of(code).severity is severity
    assert policy.is_off == (texts == ["all=ignore"])
