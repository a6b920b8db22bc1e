"""`Recovery`: which fatal errors a GPU or a MIG instance has, and when they are over. Sans-IO.

A target is a GPU (its UUID) or one MIG instance (its UUID). Errors go in with their times. Once a target has been quiet
for the hold-down it is *due*: the owner of this object looks at the GPU and reports the result. Nothing is over
before a look that found nothing; one that found something is repeated.
"""

from __future__ import annotations

import attrs

AGAIN = 5.0
"""Seconds between two looks at a GPU that is not well yet."""


@attrs.define
class _Target:
    kinds: set[str]
    due: float


class Recovery:
    """What is wrong, and until when at least.

    Args:
        hold_down: Seconds without an error that a target needs; None: nothing is ever over.
    """

    def __init__(self, hold_down: float | None) -> None:
        self._hold_down = hold_down
        self._targets: dict[str, _Target] = {}

    def happened(self, target: str, kind: str, now: float) -> None:
        """Note an error.

        Args:
            target: Whose.
            kind: Its name, for the condition.
            now: When.
        """
        found = self._targets.setdefault(target, _Target(set(), now))
        found.kinds.add(kind)
        found.due = now + (self._hold_down if self._hold_down is not None else float("inf"))

    def due(self, now: float) -> list[str]:
        """Return the targets that are to be looked at now."""
        return [name for name, target in self._targets.items() if target.due <= now]

    def looked(self, target: str, problem: str | None, now: float) -> tuple[str, ...]:
        """Take what a look at a target found, and return the kinds of errors that are over.

        Args:
            target: Which.
            problem: What is wrong with it still; None: nothing.
            now: When.
        """
        if target not in self._targets:
            return ()
        if problem is not None:
            self._targets[target].due = now + min(AGAIN, self._hold_down or AGAIN)
            return ()
        return tuple(sorted(self._targets.pop(target).kinds))
