"""The checks of device plugins: those of each topic, joined in the order of their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..checks import Check, joined
from . import allocation, lifecycle, lists, podresources, preferred, registration, restarts

if TYPE_CHECKING:
    from .scene import Case

CHECKS: tuple[Check[Case], ...] = joined(
    registration.CHECKS,
    lists.CHECKS,
    restarts.CHECKS,
    allocation.CHECKS,
    preferred.CHECKS,
    lifecycle.CHECKS,
    podresources.CHECKS,
)
