"""When the planner may write, and when it may ask again after a failure. Sans-IO: it is told the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from ...concurrency.backoff import Backoff

if TYPE_CHECKING:
    import random
    from collections.abc import Collection

    from ...cluster.api import ApiError

SLICE_GAP: Final = 1.0
"""Seconds between two writes of one slice."""

RATE: Final = 20.0
"""Writes a second, of all slices together, when the burst is used up."""

BURST: Final = 100
"""Writes that may follow one another at once; at least twice as many as there are slices."""

CALM: Final = 60.0
"""Seconds without a failure after which the next one is the first again."""


@final
class WriteRate:
    """Keeps the writes apart: of one slice, and of all together."""

    def __init__(self) -> None:
        self._written: dict[str, float] = {}
        self._burst = float(BURST)
        self._burst_at = 0.0

    def earliest(self, names: Collection[str], slices: int, now: float) -> float:
        """Return when slices of these names may be written; ``slices`` is how many the pool has."""
        at = max((self._written[name] + SLICE_GAP for name in names if name in self._written), default=now)
        most = float(max(BURST, 2 * slices, len(names)))
        self._burst = min(most, self._burst + (now - self._burst_at) * RATE)
        self._burst_at = now
        return max(at, now + max(0.0, len(names) - self._burst) / RATE)

    def wrote(self, name: str, now: float) -> None:
        """Note a write, whether it went well or not."""
        self._written[name] = now
        self._burst = max(0.0, self._burst - 1.0)

    def hurry(self, name: str) -> None:
        """The next write of this slice must not wait."""
        self._written.pop(name, None)


@final
class Failures:
    """What has gone wrong, and until when nothing is asked.

    Each kind of failure has pauses of its own, which grow while it goes on.

    Args:
        rng: Where jitter comes from.

    Attributes:
        problem: What goes wrong, as a sentence; None: nothing does.
        is_of_watch: Whether it is the watch that goes wrong.
        pause_until: Until when nothing is asked.
        unreached: Pauses while nobody answers.
        denied: Pauses while the server says no.
        conflict: Pauses while somebody else writes, too.
        nobody: Pauses while the node is not there.
    """

    def __init__(self, rng: random.Random | None) -> None:
        self.problem: str | None = None
        self.is_of_watch = False
        self.pause_until = 0.0
        self.unreached = Backoff(first=0.1, most=30.0, rng=rng)
        self.denied = Backoff(first=1.0, most=60.0, rng=rng)
        self.conflict = Backoff(first=0.05, most=5.0, rng=rng)
        self.nobody = Backoff(first=0.5, most=5.0, rng=rng)
        self._failed_at = 0.0

    def end(self) -> None:
        """All is done, and the watch has lasted: what failed before is over."""
        self.problem = None
        self.is_of_watch = False
        for backoff in (self.unreached, self.denied, self.conflict, self.nobody):
            backoff.reset()

    def add(self, backoff: Backoff, problem: str | None, now: float, *, at_least: float = 0.0) -> None:
        """Note a failure, and pause."""
        if now - max(self._failed_at, self.pause_until) > CALM:
            backoff.reset()
        self._failed_at = now
        self.problem = problem
        self.pause_until = max(self.pause_until, now + at_least + backoff.next())

    def add_error(self, error: ApiError, now: float) -> None:
        """Note what the server answered, or that it did not."""
        is_unreached = error.status in (0, 408, 429) or error.status >= 500
        backoff = self.unreached if is_unreached else self.denied
        self.add(backoff, str(error), now, at_least=error.retry_after or 0.0)
