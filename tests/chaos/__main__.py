"""``python -m tests.chaos``: play for so many seconds; exit code 1 if a rule was broken."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from kdp.testing import SimulatedKubelet

from .play import on, play
from .world import World


async def _main(seconds: float, seed: int) -> int:
    with tempfile.TemporaryDirectory(prefix="kdp-chaos-") as directory:
        async with SimulatedKubelet(seed=seed) as kubelet:
            world = World(Path(directory), kubelet, on(kubelet), random.Random(seed))  # noqa: S311 - reproducible
            began = time.monotonic()
            played = await play(world, seconds, print)
            log = world.log
    took = time.monotonic() - began
    print(f"seed {seed}: {played.total()} operations in {took:.0f} s: {dict(played.most_common())}")
    print(f"judged: {dict(world.judge.counts)}")
    for text in world.judge.violations:
        print(f"VIOLATION: {text}")
    if world.judge.violations:
        print(log, file=sys.stderr)
    return 1 if world.judge.violations else 0


def main() -> int:
    """Read the command line, and play."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="default: 60")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    return asyncio.run(_main(arguments.seconds, seed))


if __name__ == "__main__":
    sys.exit(main())
