"""Ask all questions beside each other, and wait for none of them longer than its deadline.

Each question has a daemon thread. One that hangs in a dead file system or behind a silent socket is answered "not
known", and does not keep the process from ending.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import attrs

from ..errors import in_one_line, printable
from .answers import Answer, Question, Verdict, not_known

if TYPE_CHECKING:
    from collections.abc import Sequence

_Seen = TypeVar("_Seen")

DEADLINE: Final = 3.5
"""Seconds for all questions together, which run beside each other."""

THREADS: Final = "kdp-doctor-"
"""How the names of the threads begin that nobody waits for at the end."""

_LONGEST: Final = 1000
"""Characters of an answer's text."""


@final
@attrs.frozen
class Finding:
    """A question with its answer."""

    question: Question[Any]
    answer: Answer


def examine(questions: Sequence[Question[_Seen]], node: _Seen, *, deadline: float = DEADLINE) -> list[Finding]:
    """Return the answers, in the order of the questions, without those that do not apply here.

    Characters that do not print are escaped.
    """
    answers: queue.SimpleQueue[tuple[int, Answer | None]] = queue.SimpleQueue()
    until = time.monotonic() + deadline
    found: dict[int, Answer | None] = {}
    for position, question in enumerate(questions):
        try:
            arguments = (question, node, position, answers)
            threading.Thread(target=_ask, args=arguments, name=f"{THREADS}{question.id}", daemon=True).start()
        except RuntimeError:
            found[position] = not_known("the system refused a thread for this question")
    while len(found) < len(questions):
        with contextlib.suppress(queue.Empty):
            position, answer = answers.get(timeout=max(until - time.monotonic(), 0.0))
            found[position] = answer
            continue
        break
    late = not_known(f"no answer within {deadline:g} s")
    given = ((question, found.get(position, late)) for position, question in enumerate(questions))
    return [Finding(question, _shown(answer)) for question, answer in given if answer is not None]


def worst(findings: Sequence[Finding]) -> Verdict:
    """Return the worst verdict of all. What is not known is worse than a warning: it may hide a failure."""
    verdicts = {finding.answer.verdict for finding in findings}
    order = (Verdict.FAILED, Verdict.NOT_KNOWN, Verdict.WARNING)
    return next((each for each in order if each in verdicts), Verdict.OK)


def is_under_way() -> bool:
    """Return whether a question that got no answer in time is still being asked."""
    return any(thread.name.startswith(THREADS) for thread in threading.enumerate())


def _ask(
    question: Question[_Seen], node: _Seen, position: int, answers: queue.SimpleQueue[tuple[int, Answer | None]]
) -> None:
    answer: Answer | None
    try:
        answer = question.ask(node)
    except Exception as error:  # noqa: BLE001 - one question must not cost the others
        answer = not_known(f"this question failed: {in_one_line(error)}", "report this as an error of kdp")
    answers.put((position, answer))


def _shown(answer: Answer) -> Answer:
    return Answer(answer.verdict, printable(answer.seen, _LONGEST), printable(answer.remedy, _LONGEST))
