"""`Memory`: what attributes said when they last could be read.

A device is called after what attributes say. One that fails for once, as a board's under reset, must not give its device
another name, for a pod may hold it: the device keeps its name and is unhealthy, with the reason.
"""

from __future__ import annotations

from typing import final

import attrs

__all__ = ["Known", "Memory"]


@final
@attrs.frozen
class Known:
    """What is known of an attribute.

    Attributes:
        value: What it says, or said last; None: it never said anything of use.
        problem: Why it says nothing of use now; None: it does.
    """

    value: str | None
    problem: str | None = None


@final
class Memory:
    """What attributes said, for as long as each scan asks for them. Not for several threads at once."""

    def __init__(self) -> None:
        self._before: dict[str, str] = {}
        self._now: dict[str, str] = {}

    def recall(self, path: str, value: str | None, problem: str | None) -> Known:
        """Return what an attribute says, or else said when it was last asked.

        Args:
            path: The attribute.
            value: What it says; None: nothing of use.
            problem: Why it says nothing of use.
        """
        if value is None:
            value = self._before.get(path)
        if value is not None:
            self._now[path] = value
        return Known(value, problem)

    def scanned(self) -> None:
        """Forget what the scan that ends here did not ask for: another board may come to the same place."""
        self._before, self._now = self._now, {}
