"""The objectives as plain formulas, and random questions: what the searches are compared with.

Nothing here is shared with kdp's own code but the values: all sets are listed, each gets its formula's value, the best
one wins.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import attrs

from kdp import Device

Key = tuple[object, ...]


@attrs.frozen(kw_only=True, slots=False)
class Question:
    """Devices, links between their units, and what is asked."""

    devices: tuple[Device, ...]
    links: Mapping[tuple[str, str], float]
    size: int
    must: tuple[str, ...] = ()

    @property
    def units(self) -> list[str]:
        return sorted({device.unit for device in self.devices})

    def weight(self, a: Device, b: Device) -> int:
        """Of two devices: a link that was given, or for one unit twice the strongest, or 0; times 2**60, so exact."""
        return self._weights[a.unit, b.unit]

    @functools.cached_property
    def _weights(self) -> dict[tuple[str, str], int]:
        strongest = max((w for (x, y), w in self.links.items() if x != y), default=0)
        weights: dict[tuple[str, str], int] = {}
        for a, b in itertools.product(self.units, repeat=2):
            given = self.links.get((a, b), self.links.get((b, a)))
            default = 0 if a != b else 2 * strongest or 1
            weights[a, b] = int(Fraction(default if given is None else given) * 2**60)
        return weights


def natural(device: Device) -> tuple[list[tuple[int, str]], str]:
    parts = re.findall(r"\d+|\D+", device.id)
    # Text before numbers, as an empty text before the number that a key starts with.
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts], device.id


def _first(question: Question, chosen: Sequence[Device]) -> Key:
    return ()


def _packed(question: Question, chosen: Sequence[Device]) -> Key:
    ordered = list(dict.fromkeys(d.unit for d in sorted(question.devices, key=natural)))
    free = Counter(d.unit for d in question.devices)
    units = {d.unit for d in chosen}
    places = sorted(map(ordered.index, units))
    return -len(units), len(chosen) - sum(free[unit] for unit in units), [-place for place in places]


def _spread(question: Question, chosen: Sequence[Device]) -> Key:
    free = Counter(d.unit for d in question.devices)
    counts = Counter(d.unit for d in chosen)
    return -sum(c * c for c in counts.values()), sum(free[d.unit] for d in chosen)


def _numa(question: Question, chosen: Sequence[Device]) -> Key:
    nodes = {node for d in chosen for node in d.numa_nodes}
    return -len(nodes), -sum(bool(nodes & set(d.numa_nodes)) for d in question.devices if d not in chosen)


def _linked(question: Question, chosen: Sequence[Device]) -> Key:
    weights = [question.weight(a, b) for a, b in itertools.combinations(chosen, 2)]
    nodes = {node for d in chosen for node in d.numa_nodes}
    free = [d for d in question.devices if d not in chosen]
    return (
        min(weights, default=0),
        sum(weights),
        -len(nodes),
        -sum(question.weight(a, b) for a in chosen for b in free),
    )


FORMULAS: Mapping[str, Callable[[Question, Sequence[Device]], Key]] = {
    "first": _first,
    "packed": _packed,
    "spread": _spread,
    "numa": _numa,
    "linked": _linked,
}


def best_first(policy: str, question: Question) -> list[tuple[str, ...]]:
    """Return all sets that are allowed, the best first."""
    ordered = sorted(question.devices, key=natural)
    place = {device.id: i for i, device in enumerate(ordered)}
    ranked = [
        ((*FORMULAS[policy](question, chosen), [-place[d.id] for d in chosen]), tuple(d.id for d in chosen))
        for chosen in itertools.combinations(ordered, question.size)
        if set(question.must) <= {d.id for d in chosen}
    ]
    return [ids for _, ids in sorted(ranked, reverse=True)]


def question(seed: str, *, most: int = 12) -> Question:
    """Return a random question: few or many units, links that are random, few-valued, fractions, a tree or none."""
    rng = random.Random(seed)  # noqa: S311 - for repeatability
    count = rng.randint(1, most)
    units = [f"u{i}" for i in range(rng.randint(1, count))]
    nodes = rng.choice([1, 2, 2, 4])
    near = {
        unit: () if rng.random() < 0.1 else tuple(rng.sample(range(nodes), rng.choice([1, 1, 1, min(2, nodes)])))
        for unit in units
    }
    devices: list[Device] = []
    for i in range(count):
        unit = units[i] if i < len(units) else rng.choice(units)
        numa = near[unit] if rng.random() < 0.9 else (rng.randrange(nodes),)
        devices.append(Device(id=f"d{rng.randint(0, 99)}-{i}", unit=unit, numa_nodes=numa))
    rng.shuffle(devices)
    size = rng.randint(1, count)
    must = rng.sample([d.id for d in devices], rng.choice([0, 0, 0, min(1, size), rng.randint(0, size)]))
    return Question(devices=tuple(devices), links=_links(rng, units), size=size, must=tuple(must))


def _links(rng: random.Random, units: Sequence[str]) -> dict[tuple[str, str], float]:
    kind = rng.choice(["random", "few", "fractions", "tree", "none"])
    path = {unit: [rng.randrange(2) for _ in range(3)] for unit in units}
    links: dict[tuple[str, str], float] = {}
    for a, b in itertools.combinations(units, 2):
        pair = (a, b) if rng.random() < 0.5 else (b, a)
        if kind == "random":
            links[pair] = rng.randint(0, 100)
        elif kind == "few":
            links[pair] = rng.choice([0, 10, 100])
        elif kind == "fractions":
            links[pair] = rng.choice([0.1, 0.2, 0.3, 0.7])
        elif kind == "tree":
            links[pair] = [0, 10, 20, 50][next((n for n in range(3) if path[a][n] != path[b][n]), 3)]
    if rng.random() < 0.1:  # a vendor's own word for the devices of one unit
        links |= {(unit, unit): rng.randint(0, 100) for unit in units}
    return links
