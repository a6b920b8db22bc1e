"""The checks of DRA drivers: those of each topic, joined in the order of their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..checks import Check, joined
from . import (
    claims,
    failures,
    features,
    messages,
    metadata,
    overlap,
    refusals,
    registration,
    skipping,
    slices,
    sockets,
    state,
)

if TYPE_CHECKING:
    from .scene import DraScene

CHECKS: tuple[Check[DraScene], ...] = joined(
    registration.CHECKS,
    sockets.CHECKS,
    overlap.CHECKS,
    claims.CHECKS,
    failures.CHECKS,
    features.CHECKS,
    metadata.CHECKS,
    state.CHECKS,
    slices.CHECKS,
    refusals.CHECKS,
    skipping.CHECKS,
    messages.CHECKS,
)
