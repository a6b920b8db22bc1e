"""The plugin with a ``def`` hook for Allocate, which runs in a thread."""

from __future__ import annotations

from typing_extensions import override

import kdp

from .widgets import Widgets


class Hooked(Widgets):
    """Widgets that say themselves what a container gets: the same as without the hook."""

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        return kdp.ContainerEdits.merge(((d.id, d.edits) for d in devices), joined_env=self.joined_env)


def main() -> None:
    """Serve, as the variables ``KDP_*`` say."""
    kdp.run(Hooked())
