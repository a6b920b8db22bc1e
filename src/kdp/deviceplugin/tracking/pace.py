"""`Pace`: how long tracking waits, each time in one place."""

from __future__ import annotations

from typing import final

import attrs

from ...startup import shown


@final
@attrs.frozen(kw_only=True)
class Pace:
    """Seconds that things take; tests shorten them.

    Attributes:
        gap: Between the two lists that do not name a device (contract section 10).
        admission: From a list that names a pod to an Allocate that cannot be of that pod's admission any more: the
            Allocates of other plugins may come between.
        look: Between two lists while something is owed and nothing says that a look is due.
        settling: Until a kubelet is assumed to know all its pods, if nothing says so (docs/explanation/decisions.md).
        between: Between two rounds of questions: the kubelet answers some and throttles more (contract section 10).
        retry: From a release that failed to the next try; doubled after each that fails (`RETRY_MOST`, `SCRUB_MOST`).
        absent: At most between two looks for a socket that is not there; the first is a second: a kubelet may restart.
        after_connect: From the first list of a generation to the first comparison with what the kubelet believes.
        period: Between two comparisons while all is well. A frozen kubelet must be noticed within a minute, which
            takes two questions in a row without an answer.
        again: Between two comparisons while something is wrong.
        follow: Between two lists while somebody looks at who holds what; None: nobody does.
        lasting: For which a difference must last before it is cured (contract section 13, scenario 73).
    """

    __repr__ = shown

    gap: float = 30.0
    admission: float = 10.0
    look: float = 60.0
    settling: float = 600.0
    between: float = 1.0
    retry: float = 5.0
    absent: float = 60.0
    after_connect: float = 5.0
    period: float = 30.0
    again: float = 10.0
    lasting: float = 30.0
    follow: float | None = None
