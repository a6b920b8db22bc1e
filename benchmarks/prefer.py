"""Preferred allocation: the policies' answers, and beside them NVIDIA's go-gpuallocator.

``KDP_GPUALLOCATOR`` names its binary (`benchmarks/gpuallocator/main.go` says how it is built); without it, and in a
quick run, the stored times stand in, which were measured on another day.

Figures are processor time: a search waits for nothing, so that is what it takes on a machine that is not busy
otherwise. Only where the search ends at its budget is it the clock's time.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from typing import TYPE_CHECKING

import kdp
from kdp.allocation import POLICIES, Topology, choose
from kdp.allocation.policies import Preferences

from .gpuallocator import ANSWERS, TOPOLOGIES, ask
from .table import Row, at_most, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .setting import Setting

    Clock = Callable[[], float]

__all__ = ["rows"]

SLOWEST_SIZE = 3
"""Of 16: the size at which parting them takes go-gpuallocator longest."""


def rows(setting: Setting) -> Iterator[Row]:
    """Time each answer as a plugin gives it; the figure is the worst size's median."""
    tries = setting.rounds(9, 3)
    gpus = TOPOLOGIES["cube-mesh-8"]
    yield _row("preferred, cube mesh, n=8", gpus.devices, gpus.topology, 0.5, tries)
    random = setting.random("prefer")
    units = [f"gpu-{i}" for i in range(16)]
    pairs = list(itertools.combinations(units, 2))
    meshes: dict[str, Mapping[tuple[str, str], float]] = {
        "random": {pair: random.randint(0, 100) for pair in pairs},
        "torus": {(units[a], units[b]): _torus(a, b) for a, b in itertools.combinations(range(16), 2)},
    }
    for name, links in meshes.items():
        yield _row(f"preferred, {name}, n=16", _devices(units), Topology(units, links), 5, tries)
    many = [f"gpu-{i}" for i in range(128)]
    tree = {(many[a], many[b]): _level(a, b) for a, b in itertools.combinations(range(128), 2)}
    yield _row("preferred, tree, n=128", _devices(many), Topology(many, tree), 5, tries)
    cards = [f"card-{i}" for i in range(16)]
    links = {(cards[a], cards[b]): _level(a, b) for a, b in itertools.combinations(range(16), 2)}
    slots = [
        kdp.Device(id=f"{card}-{n}", unit=card, numa_nodes=(i // 8,)) for i, card in enumerate(cards) for n in range(8)
    ]
    yield _row("preferred, 16 cards x 8 partitions", slots, Topology(cards, links), 5, tries)
    large = many[:64]
    mesh = {pair: random.randint(0, 1000) for pair in itertools.combinations(large, 2)}
    yield _row(
        "preferred, random, n=64, at its budget",
        _devices(large),
        Topology(large, mesh),
        25,
        tries,
        [8, 16, 32],
        time.perf_counter,
    )
    yield from _beside_go(setting)


def _devices(units: Sequence[str]) -> list[kdp.Device]:
    return [kdp.Device(id=unit, numa_nodes=(2 * i // len(units),)) for i, unit in enumerate(units)]


def _torus(a: int, b: int) -> int:
    """Four by four, neighbours linked."""
    rows, columns = abs(a // 4 - b // 4), abs(a % 4 - b % 4)
    return 100 if (rows, columns) in ((0, 1), (0, 3), (1, 0), (3, 0)) else 10


def _level(a: int, b: int) -> int:
    """Binary tree: the higher the common parent, the weaker the link."""
    return 100 - 10 * (a ^ b).bit_length()


def _row(
    name: str,
    devices: Sequence[kdp.Device],
    topology: Topology,
    limit: float,
    tries: int,
    sizes: Sequence[int] | None = None,
    clock: Clock = time.thread_time,
) -> Row:
    worst: tuple[float, int, list[float]] = (0.0, 0, [])
    sizes = sizes or range(1, len(devices) + 1, 1 + len(devices) // 32)
    for size in sizes:
        times = _times(devices, topology, size, tries, clock)
        worst = max(worst, (statistics.median(times), size, times))
    unproven = sum(not choose("linked", devices, size, topology=topology).proven for size in sizes)
    proof = f", {unproven} of {len(sizes)} unproven" if unproven else ", all proven"
    note = f"size {worst[1]}: {spread(worst[2], 2)} ms over {tries} tries{proof}"
    return at_most(name, worst[0], limit, "ms", digits=2, note=note)


def _times(
    devices: Sequence[kdp.Device],
    topology: Topology,
    size: int,
    tries: int,
    clock: Clock = time.thread_time,
) -> list[float]:
    preferences = Preferences(POLICIES["linked"], topology)
    request = kdp.PreferRequest(resource="example.com/gpu", available=tuple(devices), must_include=(), size=size)
    times: list[float] = []
    for _ in range(tries):
        begun = clock()
        preferences.answer(request)
        times.append(1000 * (clock() - begun))
    return times


def _beside_go(setting: Setting) -> Iterator[Row]:
    gpus = TOPOLOGIES["switch-tree-16"]
    stored = json.loads(ANSWERS.read_text())
    binary = None if setting.quick else os.environ.get("KDP_GPUALLOCATOR")
    if binary:
        ((_, took),) = ask(binary, "switch-tree-16", [(0xFFFF, 0, SLOWEST_SIZE)])
        theirs, when = took / 1e6, "in this run"
    else:
        theirs, when = stored["milliseconds on switch-tree-16 by size"][str(SLOWEST_SIZE)], f"on {stored['date']}"
    ours = statistics.median(_times(gpus.devices, gpus.topology, SLOWEST_SIZE, 20, time.perf_counter))
    ratio = theirs / ours
    yield Row(
        f"go-gpuallocator, switch tree, n=16, size {SLOWEST_SIZE}",
        f"{ratio:,.0f} x kdp",
        ">= 1,000 x" if binary else "",
        ratio >= 1000 if binary else None,
        f"{theirs:,.0f} ms {when}, kdp {ours:.2f} ms; {stored['version']}",
    )
