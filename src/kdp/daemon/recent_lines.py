"""`RecentLines`: the last lines of the log, in memory, for whoever asks this process on its unix socket.

In a container nobody has the log: it is the kubelet's, on the node. Lines and bytes are bounded. It takes no lock: a
handler of a signal, a finalizer, and other threads may log while a line is added or the lines are read.
"""

from __future__ import annotations

import collections
from typing import Final, final

MOST_LINES: Final = 256
MOST_BYTES: Final = 64 << 10


@final
class RecentLines:
    """The last lines, at most `MOST_LINES` and `MOST_BYTES` of them. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lines: collections.deque[bytes] = collections.deque(maxlen=MOST_LINES)

    def add(self, line: bytes) -> None:
        """Take a line with its end; of one that is too long, the beginning."""
        self._lines.append(line if len(line) <= MOST_BYTES else line[: MOST_BYTES - 1] + b"\n")
        while sum(map(len, self._copied())) > MOST_BYTES:
            try:
                self._lines.popleft()
            except IndexError:  # another thread took the last one
                return

    def text(self) -> str:
        """Return the lines, the oldest first."""
        return b"".join(self._copied()).decode(errors="replace")

    def _copied(self) -> tuple[bytes, ...]:
        while True:
            try:
                return tuple(self._lines)
            except RuntimeError:  # a finalizer has logged in the middle of it
                continue
