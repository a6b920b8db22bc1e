"""`RefusalLog`: the log lines of refused Allocates, bounded however many pods a controller makes.

The first refusal with a sentence is a line at once. Further ones with the same sentence are counted, and at the end of
the period one line has their number. asyncio only; use it from one loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..concurrency.history import History

logger = logging.getLogger(__name__)

PERIOD: Final = 10.0
"""Seconds after which a sentence that comes all the time is logged again, with its number."""

MOST_SENTENCES: Final = 10
"""Different sentences that are logged in a period; further ones are counted together."""

_MOST_IDS: Final = 5


@final
class RefusalLog:
    """Logs why containers did not get devices of a resource.

    Args:
        resource: The resource.
        history: Takes the refusals, too; None: nobody reads it.
    """

    def __init__(self, resource: str, history: History | None = None) -> None:
        self._resource = resource
        self._history = history
        self._more: dict[str, int] = {}
        self._others = 0
        self._timer: asyncio.TimerHandle | None = None

    def refused(self, ids: Sequence[str], reason: str, *, is_failure: bool) -> None:
        """Log a refusal, or count it; as a warning only if it is a failure of the backend."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PERIOD, self.end)
        if reason in self._more:
            self._more[reason] += 1
        elif len(self._more) >= MOST_SENTENCES:
            self._others += 1
        else:
            self._more[reason] = 0
            if self._history is not None:
                self._history.add("refused", self._resource, reason, ids)
            some = ", ".join(ids[:_MOST_IDS]) + (", ..." if len(ids) > _MOST_IDS else "")
            level = logging.WARNING if is_failure else logging.INFO
            self._log(level, f"Allocate of {some or 'no device'} was refused: {reason}")

    def end(self) -> None:
        """End the period: tell how often the sentences came again. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        more, others = self._more, self._others
        self._more, self._others = {}, 0
        for reason, count in more.items():
            if count:
                self._tell(f"{count} more Allocates were refused in {PERIOD:g} s: {reason}")
        if others:
            self._tell(f"{others} more Allocates were refused in {PERIOD:g} s, for other reasons")

    def _tell(self, text: str) -> None:
        self._log(logging.INFO, text)
        if self._history is not None:
            self._history.add("refused", self._resource, text)

    def _log(self, level: int, text: str) -> None:
        logger.log(level, "%s: %s", self._resource, text, extra={"resource": self._resource})
