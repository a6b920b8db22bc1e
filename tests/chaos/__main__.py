"""``python -m tests.chaos``: play for so many seconds; exit code 1 if a rule was broken."""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from kdp.testing import SimulatedKubelet

from .play import command, on, play
from .world import Variant, World


async def _played(seconds: float, seed: int) -> tuple[World, Counter[str]]:
    with tempfile.TemporaryDirectory(prefix="kdp-chaos-") as directory:
        async with SimulatedKubelet(seed=seed) as kubelet:
            rng = random.Random(seed)  # noqa: S311 - reproducible
            variant = Variant.drawn(rng)
            print(variant)
            world = World(Path(directory), kubelet, on(kubelet, variant.resources), rng, variant=variant)
            return world, await play(world, seconds, print)


if __name__ == "__main__":
    sys.exit(command("python -m tests.chaos", __doc__, _played))
