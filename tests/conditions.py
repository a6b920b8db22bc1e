"""Conditions for tests: kdp's own by their names in the table, all others as a backend's."""

from __future__ import annotations

from kdp.model.conditions import Condition
from kdp.supervision.conditions import KINDS


def condition(kind: str, reason: str = "why") -> Condition:
    if kind in KINDS:
        return KINDS[kind].because(reason, 0.0)
    return Condition(kind=kind, reason=reason, since=0.0, whose="backend")


def conditions(*kinds: str) -> tuple[Condition, ...]:
    return tuple(map(condition, kinds))
