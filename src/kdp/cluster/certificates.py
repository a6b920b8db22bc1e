"""`Certificates`: the files by which we and the API server know each other, which may be replaced at any time."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

LOOK_AT_FILES: Final = 60.0
"""Seconds between two looks at the files of the certificates."""


@final
class Certificates:
    """Files of the server's authority and of our own certificate, read again for each new connection.

    Args:
        context: Where they are loaded into.
        authority: The server's authority; None: it is in no file.
        own: Our certificate and its key; None: they are in no file.
    """

    def __init__(self, context: ssl.SSLContext, authority: Path | None, own: tuple[Path, Path] | None) -> None:
        self._context = context
        self._authority = authority
        self._own = own
        self._seen = self._state()
        self._next = time.monotonic() + LOOK_AT_FILES

    def doubt(self) -> None:
        """Have the next request look at the files: they may be newer than what we trust."""
        self._next = 0.0

    def look(self) -> None:
        """Load the files if they have changed and it is time to look."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_AT_FILES
        state = self._state()
        if state == self._seen:
            return
        try:
            if self._authority is not None:
                self._context.load_verify_locations(cafile=self._authority)
            if self._own is not None:
                self._context.load_cert_chain(*self._own)
        except (OSError, ValueError):
            return  # it is being replaced; the next look sees all of it
        self._seen = state

    def _state(self) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        for path in (self._authority, *(self._own or ())):
            try:
                stat = os.stat(path) if path is not None else None
            except OSError:
                stat = None
            if stat is not None:
                found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return found
