"""A device plugin that tests its device before each container: the hardware random number generator, shared."""

from __future__ import annotations

from .backend import Hwrng
from .selftest import Fault, examine, sample

__all__ = ["Fault", "Hwrng", "examine", "sample"]
