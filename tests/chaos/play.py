"""`play`: rounds of operations on a world, each followed by peace and judgement."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable

from kdp.testing import ScenarioError, SimulatedKubelet

from .judge import Table
from .operations import WEIGHTS
from .plugin import RESOURCE
from .world import World

MOST_AT_ONCE = 6


async def play(world: World, seconds: float, told: Callable[[str], object] = lambda _: None) -> Counter[str]:
    """Play until the time is over or a rule is broken; return how often each operation was played.

    Args:
        world: A world that was not entered yet.
        seconds: The last round begins within them.
        told: Takes one line for each round that broke a rule.
    """
    played: Counter[str] = Counter()
    operations, weights = [*WEIGHTS], [*WEIGHTS.values()]
    async with world.living():
        await world.settle()
        until = time.monotonic() + seconds
        while time.monotonic() < until and not world.judge.violations:
            chosen = world.rng.choices(operations, weights, k=world.rng.randint(1, MOST_AT_ONCE))
            for operation in chosen:
                played[operation.__name__] += 1
                await operation(world)
            await world.settle()
            if world.judge.violations:
                told(f"after {', '.join(operation.__name__ for operation in chosen)}")
        if not world.judge.violations:
            await world.end()
    return played


def on(kubelet: SimulatedKubelet) -> Callable[[], Awaitable[Table]]:
    """Return what looks at a simulated kubelet."""

    async def look() -> Table:
        try:
            devices = kubelet.devices(RESOURCE)
            streams = kubelet.streams(RESOURCE)
        except ScenarioError:  # it does not run
            return Table(devices={}, streams=0)
        return Table(devices={name: each.health == "Healthy" for name, each in devices.items()}, streams=streams)

    return look
