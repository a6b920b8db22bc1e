"""The version of kdp, which loads without the other names of `kdp`."""

from __future__ import annotations

__version__ = "0.1.0"
