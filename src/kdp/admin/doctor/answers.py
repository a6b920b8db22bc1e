"""Questions, their answers, and the examination that asks all of them beside each other.

An answer is *not known* if the fact should be visible here, and was not. That is no fault, but it has an exit code of
its own. A question that does not apply has no answer: as one about a container's runtime, asked in the container.

Each question has a daemon thread. One that hangs in a dead file system or behind a silent socket is answered "not
known", and does not keep the process from ending.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import shlex
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

import attrs

from ...errors import in_one_line, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_Seen = TypeVar("_Seen")
_Key = TypeVar("_Key")
_Found = TypeVar("_Found")

DEADLINE: Final = 3.5
"""Seconds for all questions together, which run beside each other."""

THREADS: Final = "kdp-doctor-"
"""How the names of the threads begin that nobody waits for at the end."""

_LONGEST: Final = 1000
"""Characters of an answer's text."""


def quoted(word: object) -> str:
    """Return a word for a command of a remedy, as a shell reads it: others on the node may have chosen it."""
    return shlex.quote(str(word))


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
    """One question about a `kdp.admin.doctor.node.Node`, or about the facts that the API server has of a node.

    Attributes:
        id: Its name for programs, in lower case with dashes. It stays the same from release to release.
        title: The question.
        why: Why the answer matters.
        ask: Finds the answer, or returns `None` if the question does not apply here. It may block: it runs in a thread
            of its own, and after the deadline the command goes on without that thread.
    """

    id: str
    title: str
    why: str
    ask: Callable[[_Seen], Answer | None]

    def __call__(self, seen: _Seen) -> Answer | None:
        """Return the answer; see `ask`."""
        return self.ask(seen)


def question(id: str, why: str) -> Callable[[Callable[[_Seen], Answer | None]], Question[_Seen]]:
    """Make a question of the function that answers it, whose docstring is the question itself."""
    return lambda ask: Question(id=id, title=ask.__doc__ or "", why=why, ask=ask)


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
    works = {position: functools.partial(_ask, question, node) for position, question in enumerate(questions)}
    refused = not_known("the system refused a thread for this question")
    found: Mapping[int, Answer | None] = beside(works, deadline, refused=refused)
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


def beside(
    works: Mapping[_Key, Callable[[], _Found]], seconds: float, *, refused: _Found | None = None
) -> dict[_Key, _Found]:
    """Return what these functions return, each called in a daemon thread of its own, which nobody waits for longer.

    Args:
        works: The functions. What raises, or is late, is left out.
        seconds: How long they may take together.
        refused: What counts as the result of one for which the system refuses a thread; None: it is left out.
    """
    done: dict[_Key, _Found] = {}
    until = time.monotonic() + seconds

    def run(key: _Key, work: Callable[[], _Found]) -> None:
        with contextlib.suppress(Exception):
            done[key] = work()

    threads = [
        threading.Thread(target=run, args=each, name=f"{THREADS}{each[0]}", daemon=True) for each in works.items()
    ]
    for thread, key in zip(threads, works, strict=True):
        try:
            thread.start()
        except RuntimeError:
            if refused is not None:
                done[key] = refused
    for thread in threads:
        if thread.ident is not None:  # it was started
            thread.join(max(until - time.monotonic(), 0.0))
    return dict(done)


def _ask(question: Question[_Seen], node: _Seen) -> Answer | None:
    try:
        return question.ask(node)
    except Exception as error:  # noqa: BLE001 - one question must not cost the others
        return not_known(f"this question failed: {in_one_line(error)}", "report this as an error of kdp")


def _shown(answer: Answer) -> Answer:
    return Answer(answer.verdict, printable(answer.seen, _LONGEST), printable(answer.remedy, _LONGEST))
