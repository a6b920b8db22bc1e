"""`Runner`: plays checks and collects what comes of them, for both protocols.

Whatever a check raises because a plugin did not do what the check took for granted is a failure as well: a check never
passes because it could not look.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from kdp.errors import KdpError, in_one_line

from ..dra.pods import PodStartError, PodStopError
from ..dra.status import ApiRefused
from ..lifetime import leaves
from ..protocol.pods import AdmissionError, ContainerStartError, NotReached, ScenarioError
from ..protocol.wire import CallError
from .checks import ConformanceCheck, Failed, NotApplicable, Status
from .reports import CheckResult, ConformanceReport

if TYPE_CHECKING:
    from .checks import Check

SceneT = TypeVar("SceneT")


class Progress:
    """Follows a run. The methods do nothing here; a subclass shows the run."""

    def begin(self, chosen: Sequence[ConformanceCheck]) -> None:
        """Take the checks that will be judged, before the first of them."""

    def start(self, check: ConformanceCheck) -> None:
        """Take a check that begins now. Other checks may run at the same time."""

    def end(self, result: CheckResult) -> None:
        """Take the result of a check immediately after it."""


Play = Callable[["Check[SceneT]"], Awaitable[str]]
"""Plays a check, and returns what was seen."""

LONGEST = 120.0
"""Seconds that a check may take besides those that it must wait."""

_SIMULATORS = (
    AdmissionError,
    ApiRefused,
    CallError,
    ContainerStartError,
    KdpError,
    NotReached,
    OSError,
    PodStartError,
    PodStopError,
    ScenarioError,
)
"""Errors that a plugin caused. A check takes some behavior for granted, and the simulators raise errors without it. kdp
raises errors of its own if it cannot serve a class."""


class Runner(Generic[SceneT]):
    """One run of checks.

    Args:
        checks: All that there are, in the order of their ids.
        profile: Which kubelet, for the report.
        only: Ids. `None` selects all checks.
        skip: Ids to leave out.
        quick: Leave out those that must wait long.
        progress: Follows the run.

    Attributes:
        chosen: The checks to be played.

    Raises:
        ValueError: There is no check with such an id, or no check to run.
    """

    def __init__(
        self,
        checks: Sequence[Check[SceneT]],
        *,
        profile: str,
        only: Iterable[int] | None = None,
        skip: Iterable[int] = (),
        quick: bool = False,
        progress: Progress | None = None,
    ) -> None:
        known = {check.id: check for check in checks}
        skipped = set(skip)
        asked = set(known if only is None else only)
        unknown = sorted((asked | skipped) - known.keys())
        if unknown:
            raise ValueError(f"there is no check {unknown[0]}; the ids are {_ranges(known)}")
        wanted = sorted(asked - skipped)
        self._left_out = tuple(id for id in wanted if quick and known[id].waits)
        self.chosen = [known[id] for id in wanted if id not in self._left_out]
        if not self.chosen:
            long = f": {_ranges(self._left_out)} must wait long, and quick leaves that out" if self._left_out else ""
            raise ValueError(f"no check is left to run{long}")
        self._profile = profile
        self._progress = progress or Progress()
        self._results: list[CheckResult] = []
        self._progress.begin(self.chosen)

    def report(self) -> ConformanceReport:
        """Return what has come of the checks so far."""
        return ConformanceReport(profile=self._profile, results=tuple(self._results), left_out=self._left_out)

    def take(self, result: CheckResult) -> None:
        """Keep a result and pass it on."""
        self._results.append(result)
        self._progress.end(result)

    async def judge_all(self, play: Play[SceneT], *, jobs: int, shares_hardware: bool, stretch: float = 1.0) -> None:
        """Play the checks that were chosen, and keep their results.

        First come those that do not disturb one another, beside one another, and then those that want to be alone. What
        changes hardware that all instances share comes last, one by one, with nothing beside it.

        Args:
            play: Plays a check, and returns what was seen.
            jobs: How many run beside one another; what only waits is not counted, unless it is 1.
            shares_hardware: Whether all instances see the same hardware.
            stretch: Factor on the seconds that checks wait.
        """
        last = [check for check in self.chosen if check.levers and shares_hardware]
        # What takes devices away comes at the end.
        last.sort(key=lambda check: ("vanish" in check.levers, "add" in check.levers))
        alone = [check for check in self.chosen if check.alone and check not in last]
        others = [check for check in self.chosen if check not in last and check not in alone]
        waiting = [check for check in others if check.lasts and jobs > 1]
        limiter = anyio.CapacityLimiter(jobs)

        async def judge(check: Check[SceneT]) -> None:
            await self.judge(check, partial(play, check), waits=stretch * check.waits)

        async def judge_in_turn(check: Check[SceneT]) -> None:
            async with limiter:
                await judge(check)

        async with anyio.create_task_group() as tasks:
            for check in waiting:
                tasks.start_soon(judge, check)
            async with anyio.create_task_group() as in_turn:
                for check in others:
                    if check not in waiting:
                        in_turn.start_soon(judge_in_turn, check)
            for check in alone:
                await judge(check)
        for check in last:
            await judge(check)

    async def judge(self, check: Check[SceneT], play: Callable[[], Awaitable[str]], *, waits: float) -> None:
        """Play a check and keep its result.

        Args:
            check: The check.
            play: Plays it, and returns what was seen.
            waits: Seconds that it may take besides `LONGEST`.
        """
        self._progress.start(check)
        began = time.monotonic()
        status: Status = "passed"
        try:
            saw = await _played(play, LONGEST + waits)
        except Failed as failed:
            status, saw = "failed", str(failed)
        except NotApplicable as reason:
            status, saw = "not_applicable", str(reason)
        self.take(CheckResult(check=check, status=status, saw=saw, seconds=time.monotonic() - began))


async def _played(play: Callable[[], Awaitable[str]], longest: float) -> str:
    try:
        with anyio.fail_after(longest):
            return await play()
    except BaseExceptionGroup as group:
        verdict = verdict_of(group)
        if isinstance(verdict, ExceptionGroup):
            raise _broken(leaves(group)[0]) from group
        raise verdict from group
    except (Failed, NotApplicable):
        raise
    except TimeoutError:
        raise Failed(f"the scenario did not come to its end within {longest:.0f} s") from None
    except _SIMULATORS as error:
        raise Failed(_text_of(error)) from error
    except Exception as error:
        raise _broken(error) from error


def _broken(error: BaseException) -> Failed:
    """Return a fault of the kit as a failed check, so that the results of the other checks are kept."""
    return Failed(f"the check itself failed with {in_one_line(error)}; please report this")


def verdict_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what a group of exceptions says of the plugin: the clearest of them."""
    flat = leaves(group)
    for kinds in ((Failed,), (NotApplicable,), _SIMULATORS):
        for error in flat:
            if isinstance(error, kinds):
                return error if isinstance(error, (Failed, NotApplicable)) else Failed(_text_of(error))
    return group


def _text_of(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    match error:
        case CallError():
            return f"a call failed: {text}"
        case AdmissionError():
            return f"a pod was refused: {text}"
        case ApiRefused():
            return f"the API server refused a request: {text}"
        case _:
            return text


def _ranges(ids: Iterable[int]) -> str:
    """Return ids as text, those without a gap between them as "1 to 75"."""
    runs: list[list[int]] = []
    for id in sorted(ids):
        if runs and runs[-1][-1] == id - 1:
            runs[-1].append(id)
        else:
            runs.append([id])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
