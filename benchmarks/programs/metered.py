"""A plugin whose devices are measured: a thousand of them, five figures each."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING

from typing_extensions import override

import kdp

from .names import ids
from .widgets import Widgets

if TYPE_CHECKING:
    from collections.abc import Mapping

FIGURES = (
    ("power", "watts"),
    ("temperature", "celsius"),
    ("memory_used", "bytes"),
    ("use", "ratio"),
    ("clock", "hertz"),
)


class Metered(Widgets):
    """Widgets whose figures are others each time."""

    measurements = tuple(kdp.Measurement(name, unit=unit, help="Of the widget.") for name, unit in FIGURES)
    measure_interval = 1.0

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._rounds = itertools.count()

    @override
    def measure(self) -> Mapping[str, Mapping[str, float]]:
        number = next(self._rounds)
        return {
            device_id: {name: place / 7 + number for place, (name, _) in enumerate(FIGURES)}
            for device_id in ids(self.count)
        }


def main() -> None:
    """Serve as many widgets as the first argument says, as the variables ``KDP_*`` say."""
    kdp.run(Metered(int(sys.argv[1])))
