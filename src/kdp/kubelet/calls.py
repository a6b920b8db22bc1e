"""Notes about calls: `CallCounts` counts those that kubelets make; `HangWatch` notices that no kubelet answers ours."""

from __future__ import annotations

import logging
from typing import Final, final

from ..concurrency.counts import Durations, Names, Tally

logger = logging.getLogger(__name__)

MOST_RESOURCES: Final = 64
"""Resources and drivers that are counted apart."""

RESULTS: Final = ("ok", "refused", "failed")
"""How a call ended: answered; kdp or the backend said no; a hook failed or was late, or the kubelet hung up."""


class CallCounts:
    """The calls of a process, for all its resources or drivers.

    Attributes:
        resources: The names of those that are counted apart.
        calls: Calls by method, resource, and result, one of `RESULTS`.
        seconds: The time until their answers, by method and resource.
    """

    def __init__(self) -> None:
        self.resources = Names(MOST_RESOURCES)
        self.calls = Tally()
        self.seconds = Durations()

    def called(self, method: str, resource: str, result: str, seconds: float) -> None:
        """Count a call that is answered."""
        name = self.resources.of(resource)
        self.calls.add(method, name, result)
        self.seconds.add(method, name, seconds=seconds)


SILENCES_BEFORE_WARNING: Final = 2
"""Number of questions in a row without an answer after which the kubelet is said to hang."""


@final
class HangWatch:
    """Counts the questions that the kubelet took in vain; one of them may have met a lock that is held for long.

    Attributes:
        problem: Why the kubelet seems to hang; None: it answers, or was not asked.
    """

    def __init__(self) -> None:
        self.problem: str | None = None
        self._silent = 0

    def note(self, *, is_silent: bool) -> None:
        """Take what became of a question: the kubelet took it and did not answer, or it answered or was not there."""
        self._silent = self._silent + 1 if is_silent else 0
        if self._silent == SILENCES_BEFORE_WARNING:
            self.problem = (
                "the kubelet accepts connections but answers no call: it hangs or is stopped; look at its process"
            )
            logger.warning("%s", self.problem)
        elif not is_silent and self.problem is not None:
            self.problem = None
            logger.info("the kubelet answers again")
