"""A plugin with one hook that takes its time: ``HOOK SECONDS``, or for ever."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from typing_extensions import override

import kdp

from .widgets import Widgets

if TYPE_CHECKING:
    from collections.abc import Iterable


class Slow(Widgets):
    """Widgets whose hooks take time.

    Args:
        hooks: The names of the hooks.
        seconds: How long; infinite: a read that never returns, which nothing can interrupt from within.
    """

    def __init__(self, hooks: list[str], seconds: float) -> None:
        super().__init__()
        self.hooks = hooks
        self.seconds = seconds
        self._pipe = os.pipe()
        self._discoveries = 0

    def _take_time(self, hook: str) -> None:
        if hook not in self.hooks:
            return
        os.write(1, b'{"event": "in_hook", "hook": "%s"}\n' % hook.encode())
        if self.seconds == float("inf"):
            os.read(self._pipe[0], 1)
        time.sleep(self.seconds)

    @override
    def open(self) -> None:
        self._take_time("open")

    @override
    def discover(self) -> Iterable[kdp.Device]:
        self._discoveries += 1
        if self._discoveries > 1:
            self._take_time("discover")
        return super().discover()

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        self._take_time("allocate")
        return kdp.ContainerEdits.merge(((d.id, d.edits) for d in devices), joined_env=self.joined_env)


def main() -> None:
    """Serve, as the variables ``KDP_*`` say."""
    kdp.run(Slow(sys.argv[2:], float(sys.argv[1])))
