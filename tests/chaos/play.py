"""`play`: rounds of operations on a world, each followed by peace and judgement."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from kdp.testing import ScenarioError, SimulatedKubelet

from .judge import Table
from .node import Node
from .operations import WEIGHTS
from .plugin import RESOURCE
from .world import World

_N = TypeVar("_N", bound=Node)
_O = TypeVar("_O")

MOST_AT_ONCE = 6
STRETCH = 8.0
"""Seconds in which the same operations are drawn."""
FEW = 3
"""Operations of every other stretch beside the two most frequent ones: a fault of two operations one after the other
comes within seconds there, and in minutes where forty are drawn (swarm testing: Groce et al., ISSTA 2012)."""
TOLD_ROUNDS = 5
"""Rounds whose operations are told when a rule was broken."""


async def play(world: World, seconds: float, told: Callable[[str], object] = lambda _: None) -> Counter[str]:
    """Play on a node with a device plugin; see `rounds`."""
    return await rounds(world, WEIGHTS, seconds, told)


async def rounds(
    world: _N,
    weights: Mapping[Callable[[_N], Awaitable[None]], int],
    seconds: float,
    told: Callable[[str], object] = lambda _: None,
) -> Counter[str]:
    """Play until the time is over or a rule is broken; return how often each operation was played.

    Args:
        world: A world that was not entered yet.
        weights: What can happen, each with how often.
        seconds: The last round begins within them.
        told: Takes one line for each of the last rounds if a rule was broken.
    """
    played: Counter[str] = Counter()
    last: deque[str] = deque(maxlen=TOLD_ROUNDS)
    async with world.living():
        await world.settle()
        until = time.monotonic() + seconds
        drawn, ends, narrow = dict(weights), time.monotonic() + STRETCH, False
        while time.monotonic() < until and not world.judge.violations:
            if time.monotonic() > ends:
                narrow, ends = not narrow, time.monotonic() + STRETCH
                drawn = _few(world.rng, weights) if narrow else dict(weights)
            chosen = world.rng.choices([*drawn], [*drawn.values()], k=world.rng.randint(1, MOST_AT_ONCE))
            last.append(", ".join(operation.__name__ for operation in chosen))
            for operation in chosen:
                played[operation.__name__] += 1
                await operation(world)
            await world.settle()
        if not world.judge.violations:
            last.append("the end")
            await world.end()
    if world.judge.violations:
        for operations_of_round in last:
            told(f"after {operations_of_round}")
    return played


def _few(rng: random.Random, weights: Mapping[_O, int]) -> dict[_O, int]:
    """Return the two most frequent operations and `FEW` others, all equally often."""
    frequent = sorted(weights, key=lambda each: -weights[each])[:2]
    return dict.fromkeys([*frequent, *rng.sample([each for each in weights if each not in frequent], FEW)], 1)


def command(
    program: str, description: str | None, played: Callable[[float, int], Awaitable[tuple[Node, Counter[str]]]]
) -> int:
    """Read the command line, play, print what came of it, and return the exit code: 1 if a rule was broken.

    Args:
        program: The program's name in its help.
        description: What it says of itself.
        played: Plays for so many seconds with a seed.
    """
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--seconds", type=float, default=60.0, help="default: 60")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)

    async def run() -> int:
        began = time.monotonic()
        world, counts = await played(arguments.seconds, seed)
        took = time.monotonic() - began
        print(f"seed {seed}: {counts.total()} operations in {took:.0f} s: {dict(counts.most_common())}")
        print(f"judged: {dict(world.judge.counts)}")
        for text in world.judge.violations:
            print(f"VIOLATION: {text}")
        if world.judge.violations:
            print(world.last_log, file=sys.stderr)
        return 1 if world.judge.violations else 0

    return asyncio.run(run())


def on(kubelet: SimulatedKubelet, resources: Sequence[str] = (RESOURCE,)) -> Callable[[], Awaitable[Table]]:
    """Return what looks at these resources of a simulated kubelet."""

    async def look() -> Table:
        try:
            found = [kubelet.devices(resource) for resource in resources]
            streams = {resource: kubelet.streams(resource) for resource in resources}
        except ScenarioError:  # it does not run
            return Table(devices={}, streams={})
        devices = {name: each.health == "Healthy" for listed in found for name, each in listed.items()}
        return Table(devices=devices, streams=streams)

    return look
