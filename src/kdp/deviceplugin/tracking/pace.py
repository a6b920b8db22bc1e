"""`Pace`: how often the kubelet is asked what pods hold."""

from __future__ import annotations

import attrs

from . import allocations, drift

__all__ = ["Pace"]

SETTLING = 600.0
"""Seconds after which a kubelet is taken to know all its pods, where nothing says so (docs/explanation/decisions.md)."""

BETWEEN = 1.0
"""Seconds between two rounds of questions: the kubelet answers some and throttles more (contract section 10)."""

ABSENT = 60.0
"""Seconds between two looks for a socket that is not there."""


@attrs.frozen(kw_only=True)
class Pace:
    """Seconds that things take; tests shorten them.

    Attributes:
        gap: Between the two lists that do not name a device.
        look: Between two lists while something is owed.
        settling: After which a kubelet is taken to know all its pods.
        between: Between two rounds of questions.
        absent: Between two looks for a socket that is not there.
        after_connect: From the stream to the first comparison with what the kubelet believes.
        period: Between two comparisons.
        again: Between two comparisons while something is wrong.
        lasting: For how long a difference lasts before it is cured.
    """

    gap: float = allocations.GAP
    look: float = allocations.LONGEST_LOOK
    settling: float = SETTLING
    between: float = BETWEEN
    absent: float = ABSENT
    after_connect: float = drift.AFTER_CONNECT
    period: float = drift.PERIOD
    again: float = drift.AGAIN
    lasting: float = drift.LASTING
