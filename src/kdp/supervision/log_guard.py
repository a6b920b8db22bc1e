"""Notices that code of a vendor has silenced kdp's log, after each call of a hook.

`logging.disable`, a `logging.config.dictConfig` that disables existing loggers, and a library that replaces the root
logger's handlers leave a process that never logs again. The process that owns the log gives its check to `guard`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_check: Callable[[str], object] = lambda _: None


def guard(check: Callable[[str], object]) -> None:
    """Have a function called after each hook, with the hook and its class in words; the last function counts."""
    global _check
    _check = check


def look(culprit: str) -> None:
    """Check the log after code of a vendor has run, before a line about it is lost."""
    _check(culprit)
