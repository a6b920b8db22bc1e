"""`Threshold`: a limit with another one for the way back."""

from __future__ import annotations

import math
from typing import final

from ..errors import InvalidValueError


@final
class Threshold:
    """Says whether a value has gone too far: beyond one limit, and not yet back behind the other.

    Without the second limit a temperature that swings around the first makes a device Unhealthy and Healthy in turn::

        from kdp.hardware import Threshold

        too_hot = Threshold(crossed_at=90, cleared_at=80)
        assert [too_hot.is_crossed("card0", celsius) for celsius in (89, 91, 89, 80)] == [False, True, True, False]

    Keep one on the backend for each kind of value. It may be asked in any thread.

    Args:
        crossed_at: The value at which it is crossed.
        cleared_at: The value at which it is cleared again. If it is larger than ``crossed_at``, small values are the
            bad ones, as of a fan's speed.

    Raises:
        InvalidValueError: The limits are equal, or one is no finite number.
    """

    def __init__(self, *, crossed_at: float, cleared_at: float) -> None:
        if not (math.isfinite(crossed_at) and math.isfinite(cleared_at)) or crossed_at == cleared_at:
            raise InvalidValueError(
                f"crossed_at={crossed_at} and cleared_at={cleared_at}: must be two different finite numbers; valid is "
                "Threshold(crossed_at=90, cleared_at=80)"
            )
        self._crossed_at = crossed_at
        self._cleared_at = cleared_at
        self._crossed: set[str] = set()

    def is_crossed(self, name: str, value: float | None) -> bool:
        """Return whether the value of a device has gone too far; None: it cannot be read, and all is as before."""
        if value is not None:
            sign = 1.0 if self._crossed_at > self._cleared_at else -1.0
            if sign * value >= sign * self._crossed_at:
                self._crossed.add(name)
            elif sign * value <= sign * self._cleared_at:
                self._crossed.discard(name)
        return name in self._crossed
