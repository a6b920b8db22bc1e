"""A stretch of a test without root's right to read and to write everything."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Go on as the user "nobody" if this is root. What is imported meanwhile must be readable for that user."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
