"""Different units for one container, chosen by any policy: what a sharing with the placement ``distinct`` wants.

The devices for each unit are as even as can be (the smallest sum of squares, as `spread` has it): as many units as
devices are wanted, if there are so many. Then each unit is stood for by one of its devices, and the policy chooses
among those.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from .counting import spread, spread_terms
from .problem import Found, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .problem import Term
    from .topology import Topology

    Search = Callable[[Problem, Topology, float], Found]
    Terms = Callable[[Problem, Topology, Collection[int]], tuple[Term, ...]]


def one_of_each_unit(problem: Problem) -> Problem | None:
    """Return the question about units, each stood for by one device; None: so many different units there are not."""
    chosen: dict[str, int] = {}
    for i in sorted(problem.open, key=lambda i: (i not in problem.must, i)):
        unit = problem.devices[i].unit
        if i in problem.must and unit in chosen:
            return None
        chosen.setdefault(unit, i)
    if len(chosen) < problem.size:
        return None
    positions = sorted(chosen.values())
    return Problem(
        devices=tuple(problem.devices[i] for i in positions),
        must=frozenset(n for n, i in enumerate(positions) if i in problem.must),
        size=problem.size,
    )


def distinct(search: Search) -> Search:
    """Return a search for different units by this one; where they do not suffice, that of `spread`."""

    def search_units(problem: Problem, topology: Topology, deadline: float) -> Found:
        units = one_of_each_unit(problem)
        if units is None:
            return spread(problem, topology, deadline)
        found = search(units, topology, deadline)
        ids = set(units.ids(found.positions))
        positions = tuple(i for i, device in enumerate(problem.devices) if device.id in ids)
        return attrs.evolve(found, positions=positions)

    return search_units


def distinct_terms(terms: Terms) -> Terms:
    """Return the objective of `distinct`: evenness first, then the policy's terms among units, or `spread`'s."""

    def terms_of_units(problem: Problem, topology: Topology, chosen: Collection[int]) -> tuple[Term, ...]:
        even = spread_terms(problem, topology, chosen)
        counts = Counter(problem.devices[i].unit for i in chosen)
        if max(counts.values()) > 1 or one_of_each_unit(problem) is None:
            return even
        # Each unit is stood for by a device that could be taken: the chosen one, or the first.
        standing: dict[str, int] = {problem.devices[i].unit: i for i in chosen}
        for i in range(len(problem.devices)):
            standing.setdefault(problem.devices[i].unit, i)
        positions = sorted(standing.values())
        units = Problem(tuple(problem.devices[i] for i in positions), frozenset(), problem.size)
        inside = [n for n, i in enumerate(positions) if i in set(chosen)]
        return (even[0], *terms(units, topology, inside))

    return terms_of_units
