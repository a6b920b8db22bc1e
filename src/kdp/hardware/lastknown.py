"""`LastKnown`: what attributes said when they last could be read.

A device is called after what attributes say, and is of a resource because of them. One that fails for once, as a
board's under reset, must not give its device another name or place, for a pod may hold it: the device stays what it
was, and is unhealthy.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Generator


@final
class LastKnown:
    """What attributes said, as long as each `scan` asks for them with `recall`. For one backend and one thread."""

    def __init__(self) -> None:
        self._last: dict[str, str | None] = {}
        self._now: dict[str, str | None] = {}

    @contextmanager
    def scan(self) -> Generator[None]:
        """Keep what is asked for inside, and forget the rest: another device may come to the same place.

        A scan that raises forgets nothing, and nothing of it is kept.
        """
        self._now = {}
        yield
        self._last = self._now

    def recall(self, key: str, value: str | None) -> str | None:
        """Return what an attribute says, else what it said, in this scan or the last; None: nothing.

        Args:
            key: The attribute. Where a device's successor at the same place must not inherit it, with what tells them
                apart.
            value: What it says; None: no usable value.
        """
        if value is None:
            value = self._now.get(key, self._last.get(key))
        self._now[key] = value
        return value

    def was_asked(self, key: str) -> bool:
        """Return whether this scan asked for an attribute already, so that `recall` needs no new value."""
        return key in self._now
