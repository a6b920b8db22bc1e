"""A guest with nothing special: for the tests of guests themselves."""

from __future__ import annotations

from typing import Final

from ..vm import Kind

__all__ = ["PLAIN"]

PLAIN: Final = Kind(name="plain", memory=512)
