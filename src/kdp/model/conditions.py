"""`Condition`: one reason why a device is not offered, as a value. kdp decides by its fields and parses no reason."""

from __future__ import annotations

from typing import Literal, final

import attrs

from ..startup import shown

Whose = Literal["kdp", "backend"]
"""The owner of a condition's kind."""


@final
@attrs.frozen(kw_only=True)
class Condition:
    """One reason why a device is not offered. kdp makes them; a backend reads them at most.

    Two conditions that differ only in ``since`` are equal.

    Attributes:
        kind: The kind, in a word: one of kdp's own (docs/reference/conditions.md), or the one that the backend gave
            `kdp.Reporter.fault`.
        reason: The sentence for logs and error texts. No program reads it.
        since: When the condition began, in seconds on the clock of `kdp.supervision.health.HealthMonitor`'s caller.
        whose: The owner of the kind. A backend's kind may have the name of one of kdp's own kinds.
    """

    __repr__ = shown

    kind: str
    reason: str
    since: float = attrs.field(eq=False)
    whose: Whose
