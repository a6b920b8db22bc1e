"""A backend for a cluster's tests that has something to clean up, so that kdp saves what is allocated."""

from __future__ import annotations

from typing_extensions import override

import kdp
from kdp_example_generic import Generic

__all__ = ["Keeper"]


class Keeper(Generic):
    """The generic example, told when a pod gives devices back."""

    @override
    def released(self, devices: kdp.Allocation) -> None:
        """Clean up nothing: that it could is enough."""
