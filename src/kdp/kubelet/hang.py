"""`HangWatch`: says that the kubelet hangs, if it takes questions and answers none."""

from __future__ import annotations

import logging
from typing import Final, final

logger = logging.getLogger(__name__)

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
