"""All checks. Importing the topics is what enters their checks into the list."""

from __future__ import annotations

from . import allocation, lifecycle, lists, podresources, preferred, registration, restarts, streams, watcher
from .model import REGISTRY, ConformanceCheck

__all__ = ["CHECKS", "TOPICS"]

TOPICS = (registration, lists, streams, restarts, allocation, preferred, lifecycle, watcher, podresources)

CHECKS: tuple[ConformanceCheck, ...] = tuple(REGISTRY[id] for id in sorted(REGISTRY))
"""In the order of their ids."""
