"""The plugin with a ``def`` hook for Allocate that leaves a state, which Allocate must have on the disk first."""

from __future__ import annotations

from typing_extensions import override

import kdp

from .hooked import Hooked


class Stated(Hooked):
    """Widgets that are told which of them they were, when their pod has ended."""

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        devices.state["first"] = next(iter(devices)).id
        return super().allocate(devices)

    @override
    def released(self, devices: kdp.Allocation) -> None:
        """Do nothing: no pod ends here."""


def main() -> None:
    """Serve, as the variables ``KDP_*`` say."""
    kdp.run(Stated())
