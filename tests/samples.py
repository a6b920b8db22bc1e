"""A few of many cases in `make test`, and all of them in `make test-slow`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["few"]


def few(cases: Sequence[object], kept: int = 2) -> list[Any]:
    """Return parameters of a test: the first ones as they are, and the others marked as slow."""
    return [*cases[:kept], *(pytest.param(case, marks=pytest.mark.slow) for case in cases[kept:])]
