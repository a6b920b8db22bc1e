"""Counts and durations that a process keeps of its own work, in bounded memory whatever the names are.

They are plain numbers in the event loop: one owner adds to them, and a reader copies them. Nobody here knows what they
are for. Each costs about a microsecond for what is counted.

* `Names` lets only so many names through, each as text that prints. The rest is called ``other``.
* `Tally` counts by labels, and `Durations` counts in buckets.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, final

import attrs

from ..errors import printable
from ..startup import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

OTHER: Final = "other"
"""What names beyond the limit are called."""

LONGEST_NAME: Final = 253
"""Characters of a name: of the longest resource that a kubelet accepts."""

BUCKETS: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0)
"""Upper bounds in seconds: from a merge of edits, a millisecond, to the longest deadline of a hook in a call."""

MOST_ENTRIES: Final = 1024
"""Different labels of one tally. Its owner bounds each name, and this bounds what they make together."""


@final
class Names:
    """The first so many names that came; any other one is `OTHER`, for as long as the process lives."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Return the name as it is shown."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= self._most:
                return OTHER
            known = self._known[name] = printable(name, LONGEST_NAME)
        return known


@final
class Tally:
    """How often something happened, by its labels. The caller bounds the labels; see `Names`."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, *labels: str, by: int = 1) -> None:
        """Count what has these labels."""
        if labels not in self._counts and len(self._counts) >= MOST_ENTRIES:
            labels = (OTHER,) * len(labels)
        self._counts[labels] = self._counts.get(labels, 0) + by

    @property
    def counts(self) -> Mapping[tuple[str, ...], int]:
        """A copy."""
        return dict(self._counts)


@final
@attrs.frozen
class Distribution:
    """A copy of `Durations`.

    Attributes:
        buckets: How many durations fell into each bucket of `BUCKETS`, and at last those beyond.
        total: Their sum in seconds.
    """

    __repr__ = shown

    buckets: tuple[int, ...]
    total: float

    def plus(self, other: Distribution) -> Distribution:
        """Return both as one."""
        buckets = tuple(a + b for a, b in zip(self.buckets, other.buckets, strict=True))
        return Distribution(buckets, self.total + other.total)


NO_DURATIONS: Final = Distribution((0,) * (len(BUCKETS) + 1), 0.0)
"""Of something that has not happened."""


@final
class Durations:
    """How long something took, by its labels. The caller bounds the labels; see `Names`."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, ...], list[int]] = {}
        self._totals: dict[tuple[str, ...], float] = {}

    def add(self, *labels: str, seconds: float) -> None:
        """Count a duration of what has these labels."""
        if labels not in self._buckets and len(self._buckets) >= MOST_ENTRIES:
            labels = (OTHER,) * len(labels)
        buckets = self._buckets.setdefault(labels, [0] * (len(BUCKETS) + 1))
        buckets[bisect_left(BUCKETS, seconds)] += 1
        self._totals[labels] = self._totals.get(labels, 0.0) + seconds

    @property
    def counts(self) -> Mapping[tuple[str, ...], Distribution]:
        """A copy."""
        return {labels: Distribution(tuple(each), self._totals[labels]) for labels, each in self._buckets.items()}
