"""NVIDIA's go-gpuallocator beside `linked`: the topologies, the questions, and what it answered.

``answers.json`` holds its answers with version and date, so that the comparison needs no Go. ``python -m
benchmarks.gpuallocator BINARY VERSION`` asks the binary again (`main.go` says how it is built) and writes that file.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from kdp import Device
from kdp.allocation import Topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["ANSWERS", "CASES", "TOPOLOGIES", "Case", "Gpus", "answers", "ask"]

ANSWERS = Path(__file__).with_name("answers.json")

CROSS_CPU, SAME_CPU, HOST_BRIDGE, SINGLE_SWITCH, NVLINK = 1, 2, 3, 5, 6
"""Its types of links; NVLINK + n: n of them."""

Case = tuple[int, int, int]
"""Available and required GPUs as bit masks, and how many are wanted."""


def score_of(kinds: Sequence[int]) -> int:
    """Return its score of a pair that is linked in these ways: 10 to 60 for PCIe, 100 for each NVLink."""
    return sum(10 * kind if kind <= NVLINK else 100 * (kind - NVLINK) for kind in kinds)


@attrs.frozen
class Gpus:
    """A topology of GPUs.

    Attributes:
        count: How many.
        links: The types of links by pair.
    """

    count: int
    links: dict[tuple[int, int], tuple[int, ...]]

    @property
    def devices(self) -> list[Device]:
        """The GPUs as kdp sees them, without NUMA nodes: its policy knows none."""
        return [Device(id=f"gpu-{i}") for i in range(self.count)]

    @property
    def topology(self) -> Topology:
        """The links with its scores as weights."""
        links = {(f"gpu-{a}", f"gpu-{b}"): score_of(kinds) for (a, b), kinds in self.links.items()}
        return Topology([device.id for device in self.devices], links)

    def score(self, mask: int) -> int:
        """Return its score of a set."""
        inside = [i for i in range(self.count) if mask >> i & 1]
        return sum(score_of(self.links[pair]) for pair in itertools.combinations(inside, 2))


def _pcie(count: int, switch: int) -> dict[tuple[int, int], tuple[int, ...]]:
    def kind(a: int, b: int) -> int:
        if a // switch == b // switch:
            return SINGLE_SWITCH
        return HOST_BRIDGE if a // (count // 2) == b // (count // 2) else CROSS_CPU

    return {(a, b): (kind(a, b),) for a, b in itertools.combinations(range(count), 2)}


# A DGX-1 with V100: six NVLinks a GPU, doubled on some pairs.
_DOUBLE = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}
_SINGLE = {(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)}

TOPOLOGIES = {
    "cube-mesh-8": Gpus(
        8,
        {
            pair: (*kinds, *((NVLINK + 2,) if pair in _DOUBLE else (NVLINK + 1,) if pair in _SINGLE else ()))
            for pair, kinds in _pcie(8, 2).items()
        },
    ),
    "switch-tree-8": Gpus(8, _pcie(8, 2)),
    "nvswitch-8": Gpus(8, {pair: (*kinds, NVLINK + 12) for pair, kinds in _pcie(8, 2).items()}),
    "switch-tree-16": Gpus(16, _pcie(16, 4)),
}


def _all_cases(count: int) -> list[Case]:
    """Every question without a required GPU, and some with."""
    chosen = random.Random("required")  # noqa: S311 - for repeatability
    cases: list[Case] = []
    for available in range(1, 1 << count):
        for size in range(1, available.bit_count() + 1):
            cases.append((available, 0, size))
            if chosen.random() < 0.3:
                inside = [i for i in range(count) if available >> i & 1]
                required = chosen.sample(inside, chosen.randint(1, min(size, 2)))
                cases.append((available, sum(1 << i for i in required), size))
    return cases


CASES: dict[str, list[Case]] = {
    **{name: _all_cases(8) for name in ("cube-mesh-8", "switch-tree-8", "nvswitch-8")},
    "switch-tree-16": [(0xFFFF, 0, size) for size in range(1, 17)],
}


def ask(binary: str | Path, name: str, cases: Iterable[Case]) -> list[tuple[int, int]]:
    """Ask the Go program; return the chosen sets and the nanoseconds."""
    gpus = TOPOLOGIES[name]
    question = {
        "count": gpus.count,
        "links": [[a, b, kinds] for (a, b), kinds in gpus.links.items()],
        "cases": list(cases),
    }
    done = subprocess.run([str(binary)], input=json.dumps(question), capture_output=True, text=True, check=True)
    return [(int(mask), int(took)) for mask, took in map(str.split, done.stdout.splitlines())]


def answers() -> dict[str, list[tuple[Case, int]]]:
    """Return the stored answers: for each topology the cases and the chosen sets."""
    stored = json.loads(ANSWERS.read_text())["answers"]
    return {name: list(zip(cases, stored[name], strict=True)) for name, cases in CASES.items()}
