"""``python -m tests.chaos.dra``: play for so many seconds; exit code 1 if a rule was broken."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.chaos.play import command, rounds

from .operations import WEIGHTS
from .world import DraWorld, node_of


async def _played(seconds: float, seed: int) -> tuple[DraWorld, Counter[str]]:
    with tempfile.TemporaryDirectory(prefix="kdp-chaos-") as directory:
        async with node_of(Path(directory), seed) as world:
            return world, await rounds(world, WEIGHTS, seconds, print)


if __name__ == "__main__":
    sys.exit(command("python -m tests.chaos.dra", __doc__, _played))
