"""A plugin that discovers more devices each time, a second apart: ``COUNT...``."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from typing_extensions import override

import kdp

from .widgets import Widgets

if TYPE_CHECKING:
    from collections.abc import Iterable


class Growing(Widgets):
    """Widgets that grow in number, and stay at the last one.

    Args:
        counts: How many there are at the first discovery, at the second, and so on.
    """

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self.counts = counts

    @override
    def discover(self) -> Iterable[kdp.Device]:
        self.count = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        os.write(1, b'{"event": "declared", "devices": %d}\n' % self.count)
        return super().discover()

    @override
    async def watch(self, report: kdp.Reporter) -> None:
        for _ in range(len(self.counts)):
            await asyncio.sleep(1.0)
            report.rescan()


def main() -> None:
    """Serve, as the variables ``KDP_*`` say."""
    kdp.run(Growing([int(count) for count in sys.argv[1:]]))
