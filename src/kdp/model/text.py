"""`plain_text`: what a backend says in words becomes printable text of bounded length, whatever object it is.

A vendor's commonest slip is an exception or a number where a reason is expected, just when the hardware fails. It must
not hide the failure, so it is said in the log and taken as text.
"""

from __future__ import annotations

import functools
import logging

from ..errors import message_of, printable

logger = logging.getLogger(__name__)

LONGEST = 1024
"""Characters of a text that is kept; a longer one ends with ``...``."""


def plain_text(value: object, what: str, *, most: int = LONGEST) -> str:
    """Return a value as a `str` of one line that prints. Raises nothing, and logs once what is no text.

    Args:
        value: What a backend gave; an object of a subclass of `str`, such as a ``StrEnum``, is copied.
        what: What the log calls it: ``the reason of Health.unhealthy``.
        most: Characters that are kept.
    """
    text = str.__str__(value) if isinstance(value, str) else _spelled(value, what)
    return printable(text[: most + 1].encode(errors="replace").decode(), most)


def shown_value(value: object, *, most: int = 63) -> str:
    """Return how a message shows a value that is not what it should be: its `repr`, or its type if that fails."""
    try:
        return printable(repr(value), most)
    except Exception:  # noqa: BLE001 - whatever a class of others does
        return f"a {type(value).__name__}"


def _spelled(value: object, what: str) -> str:
    _warn(what, type(value).__name__)
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {message_of(value)}"
    if isinstance(value, (bytes, bytearray)):
        return bytes(value[:LONGEST]).decode(errors="replace")
    try:
        return str.__str__(str(value))
    except Exception:  # noqa: BLE001 - whatever a class of others does
        return f"a {type(value).__name__}"


@functools.lru_cache(maxsize=256)
def _warn(what: str, kind: str) -> None:
    """Say it once for each place and type: a backend repeats it with each discovery."""
    logger.warning("%s must be text, this was of type %s; kdp converts it to text", what, kind)
