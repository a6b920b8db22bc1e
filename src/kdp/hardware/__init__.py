"""The node's hardware as files: readers that work on a root of choice, and word of changes."""

from __future__ import annotations

from .host import Host
from .watch import DirectoryWatch

__all__ = ["DirectoryWatch", "Host"]
