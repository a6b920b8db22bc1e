"""How long to wait before the next try: exponential with jitter, no clock of its own (design 4.1: 0.1 s to 5 s)."""

from __future__ import annotations

import random


class Backoff:
    """A row of growing pauses, in seconds. Tests give a seeded ``rng`` for the jitter."""

    def __init__(self, *, first: float = 0.1, most: float = 5.0, rng: random.Random | None = None) -> None:
        self._first = first
        self._most = most
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self.failures = 0

    def next(self) -> float:
        """Return the next pause in seconds: between half and all of the doubled pause before, at most ``most``."""
        pause = min(self._most, self._first * 2.0 ** min(self.failures, 20))
        self.failures += 1
        return pause * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self.failures = 0
