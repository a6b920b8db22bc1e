"""The checks of DRA drivers: those of each topic, joined in the order of their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..checks import Check, joined
from . import (
    claims,
    features,
    messages,
    registration,
    slices,
    state,
)

if TYPE_CHECKING:
    from .scene import DraScene

CHECKS: tuple[Check[DraScene], ...] = joined(
    registration.CHECKS,
    claims.CHECKS,
    features.CHECKS,
    state.CHECKS,
    slices.CHECKS,
    messages.CHECKS,
)
