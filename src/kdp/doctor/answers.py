"""`Question` and `Answer`: what is asked about a node, and what was seen.

An answer is *not known* if the fact should be visible here, and was not. That is no fault, but it has an exit code of
its own. A question that does not apply has no answer: as one about a container's runtime, asked in the container.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Generic, TypeVar, final

import attrs

_Seen = TypeVar("_Seen")


class Verdict(enum.Enum):
    """How an answer turned out, from good to bad."""

    OK = "ok"
    NOT_KNOWN = "not known"
    WARNING = "warning"
    FAILED = "failed"


@final
@attrs.frozen
class Answer:
    """What was found.

    Attributes:
        verdict: How it turned out.
        seen: What was seen, in one sentence.
        remedy: What mends it, with a command where there is one; empty: there is nothing to mend.
    """

    verdict: Verdict
    seen: str
    remedy: str = ""


def ok(seen: str) -> Answer:
    """Return an answer without a fault."""
    return Answer(Verdict.OK, seen)


def not_known(seen: str, remedy: str = "") -> Answer:
    """Return that the fact cannot be seen from here; the remedy is what would show it."""
    return Answer(Verdict.NOT_KNOWN, seen, remedy)


def warning(seen: str, remedy: str) -> Answer:
    """Return a fault that devices can be served with."""
    return Answer(Verdict.WARNING, seen, remedy)


def failed(seen: str, remedy: str) -> Answer:
    """Return a fault that keeps devices from being served."""
    return Answer(Verdict.FAILED, seen, remedy)


@final
@attrs.frozen(kw_only=True)
class Question(Generic[_Seen]):
    """One question about something: a `kdp.doctor.node.Node`, or what the API server says of one.

    Attributes:
        id: Its name for programs, in lower case with dashes. It stays the same from release to release.
        title: The question.
        why: Why the answer matters.
        ask: Finds the answer; None: the question does not apply here, and is left out. It may block: it is called in a
            thread of its own, which nobody waits for after the deadline.
    """

    id: str
    title: str
    why: str
    ask: Callable[[_Seen], Answer | None]
