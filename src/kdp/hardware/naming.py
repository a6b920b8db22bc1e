"""How names with numbers are sorted: ``uverbs2`` before ``uverbs10``."""

from __future__ import annotations

import functools
import re

_DIGITS = re.compile(r"([0-9]+)")


@functools.lru_cache(maxsize=4096)
def natural(text: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """Return a key for sorting that compares numbers as numbers; no two texts have the same."""
    pieces = _DIGITS.split(text)  # text, number, text, number, ..., text
    return tuple(zip(pieces[::2], [*map(int, pieces[1::2]), -1], strict=True)), text
