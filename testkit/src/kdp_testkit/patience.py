"""The one deadline for whatever happens at all: generous, because the machine may be busy."""

from __future__ import annotations

from typing import Final

__all__ = ["PATIENCE"]

PATIENCE: Final = 60.0
"""Seconds that a test waits until something has happened. How fast it happens is for benchmarks."""
