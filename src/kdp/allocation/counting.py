"""`first`, `packed`, `spread` and `numa`: the policies that count and look at no links. All are exact. And `distinct`.

Each objective is a few sums, said in the function's docstring, and after them the natural order of ids. "Free" devices
of a unit are those that the kubelet offers, must-include ones counted.

`distinct` counts before another policy: it makes of any policy one that chooses different units for one container, as a
sharing with that placement wants it. The devices for each unit are as even as can be (the smallest sum of squares, as
`spread` has it): as many units as devices are wanted, if there are so many. Then each unit is stood for by one of its
devices, and the policy chooses among those.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from .problem import Found, Problem, Term, union

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from .topology import Topology

    Search = Callable[[Problem, Topology, float], Found]
    Terms = Callable[[Problem, Topology, Collection[int]], tuple[Term, ...]]

_LOOK = 256
"""Combinations of NUMA nodes between two looks at the clock: eight nodes never reach it."""


def first(problem: Problem, _topology: Topology, _deadline: float) -> Found:
    """Take the first ones in natural order."""
    return Found(_filled(problem, problem.open))


def first_terms(_problem: Problem, _topology: Topology, _chosen: Collection[int]) -> tuple[Term, ...]:
    """Return no terms: only the order of ids counts."""
    return ()


def _filled(problem: Problem, candidates: Iterable[int]) -> tuple[int, ...]:
    """Return the must-include ones, filled up with the first candidates."""
    others = sorted(set(candidates) - problem.must)
    return tuple(sorted((*problem.must, *others[: problem.size - len(problem.must)])))


def _units(problem: Problem, positions: Iterable[int]) -> dict[str, list[int]]:
    units: dict[str, list[int]] = {}
    for i in positions:
        units.setdefault(problem.devices[i].unit, []).append(i)
    return units


# -- packed ------------------------------------------------------------------------------------------------------------


def packed(problem: Problem, _topology: Topology, deadline: float) -> Found:
    """Break as few units as possible: fewest units; then least left free on them; then the first units and ids."""
    free = Counter(device.unit for device in problem.devices)
    open_ = _units(problem, problem.open)
    forced = {problem.devices[i].unit for i in problem.must}
    order = list(free)  # in natural order of each unit's first device
    bit = {unit: 1 << (len(order) - 1 - n) for n, unit in enumerate(order)}
    offered = sum(len(open_[unit]) for unit in forced)
    others = sorted((unit for unit in open_ if unit not in forced), key=lambda unit: -len(open_[unit]))
    count, most = 0, offered
    while most < problem.size:
        most += len(open_[others[count]])
        count += 1
    # Classes of units that are alike; of a class the first units are taken.
    classes: dict[tuple[int, int], list[str]] = {}
    for unit in sorted(others, key=order.index):
        classes.setdefault((len(open_[unit]), free[unit]), []).append(unit)
    states: dict[tuple[int, int], tuple[int, int]] = {(0, offered): (0, 0)}
    for (size, all_free), members in sorted(classes.items(), reverse=True):
        after: dict[tuple[int, int], tuple[int, int]] = {}
        taken = [0, *itertools.accumulate(bit[unit] for unit in members)]
        for (units, devices), (rank, bits) in states.items():
            for n in range(min(len(members), count - units) + 1):
                # What follows is no larger, so what cannot be reached with it is no way.
                if devices + n * size + (count - units - n) * size < problem.size:
                    continue
                key, value = (units + n, devices + n * size), (rank - n * all_free, bits | taken[n])
                after[key] = max(after.get(key, value), value)
        states = after
        if time.monotonic() > deadline:
            chosen = forced | set(others[:count])
            return Found(_filled(problem, itertools.chain.from_iterable(open_[unit] for unit in chosen)), proven=False)
    _, best = max(value for (units, devices), value in states.items() if units == count and devices >= problem.size)
    chosen = forced | {unit for unit in order if best & bit[unit]}
    return Found(_filled(problem, itertools.chain.from_iterable(open_[unit] for unit in chosen)))


def packed_terms(problem: Problem, _topology: Topology, chosen: Collection[int]) -> tuple[Term, ...]:
    """Return the number of units and what stays free on them; ties go to the first units."""
    units = _units(problem, sorted(chosen))
    free = Counter(device.unit for device in problem.devices)
    order = list(free)
    rank = sum(1 << (len(order) - 1 - order.index(unit)) for unit in units)
    return (
        Term("units", len(units)),
        Term("left_free", sum(free[unit] for unit in units) - len(chosen)),
        Term("", rank, larger_is_better=True),
    )


# -- spread ------------------------------------------------------------------------------------------------------------


def spread(problem: Problem, _topology: Topology, _deadline: float) -> Found:
    """Share the load: as many units as can be, as evenly as can be; then those units with the most free devices.

    Even means: the smallest sum of the squares of the devices for each unit.
    """
    free = Counter(device.unit for device in problem.devices)
    held = Counter(problem.devices[i].unit for i in problem.must)
    waiting = {
        unit: [i for i in held_ if i not in problem.must] for unit, held_ in _units(problem, problem.open).items()
    }
    chosen = list(problem.must)
    while len(chosen) < problem.size:
        # The next device of a unit that has c of them adds 2c + 1 to the sum: the smallest c goes first.
        unit = min((u for u in waiting if waiting[u]), key=lambda u: (held[u], -free[u], waiting[u][0]))
        chosen.append(waiting[unit].pop(0))
        held[unit] += 1
    return Found(tuple(sorted(chosen)))


def spread_terms(problem: Problem, _topology: Topology, chosen: Collection[int]) -> tuple[Term, ...]:
    """Return the sum of squares of the devices by unit, and the free devices of the chosen ones' units."""
    free = Counter(device.unit for device in problem.devices)
    counts = Counter(problem.devices[i].unit for i in chosen)
    return (
        Term("squares", sum(count * count for count in counts.values())),
        Term("free", sum(free[unit] * count for unit, count in counts.items()), larger_is_better=True),
    )


# -- numa --------------------------------------------------------------------------------------------------------------


def numa(problem: Problem, _topology: Topology, deadline: float) -> Found:
    """Stay on few NUMA nodes: fewest nodes; then the fewest free devices left near them; then the first ids."""
    masks = problem.masks
    forced = union(masks[i] for i in problem.must)
    nodes = sorted({node for device in problem.devices for node in device.numa_nodes if not forced >> node & 1})
    offered = Counter(masks[i] for i in problem.open)
    present = Counter(masks)
    for count in range(len(nodes) + 1):
        best: tuple[int, int] | None = None
        for tried, extra in enumerate(itertools.combinations(nodes, count)):
            if tried % _LOOK == _LOOK - 1 and time.monotonic() > deadline:
                return _greedy(problem, masks, forced)
            reach = forced | sum(1 << node for node in extra)
            if sum(n for mask, n in offered.items() if not mask & ~reach) < problem.size:
                continue
            near = sum(n for mask, n in present.items() if mask & reach)
            # Those that are near a node first: each of them leaves one less behind.
            inside = [i for i in problem.open if not masks[i] & ~reach and i not in problem.must]
            taken = sorted(inside, key=lambda i: (not masks[i], i))[: problem.size - len(problem.must)]
            chosen = (*problem.must, *taken)
            rank = (sum(1 for i in chosen if masks[i]) - near, problem.bits(chosen))
            best = max(best, rank) if best is not None else rank
        if best is not None:
            return Found(problem.positions(best[1]))
    raise AssertionError("all nodes together hold all devices")


def _greedy(problem: Problem, masks: Sequence[int], reach: int) -> Found:
    """Add the node that brings most, again and again: for machines with dozens of nodes."""
    inside: Callable[[], list[int]] = lambda: [i for i in problem.open if not masks[i] & ~reach]
    while len(inside()) < problem.size:
        lacking = {masks[i] & ~reach for i in problem.open} - {0}
        reach |= max(lacking, key=lambda mask: (sum(1 for i in problem.open if not masks[i] & ~(reach | mask)), -mask))
    return Found(_filled(problem, inside()), proven=False)


def numa_terms(problem: Problem, _topology: Topology, chosen: Collection[int]) -> tuple[Term, ...]:
    """Return the number of NUMA nodes, and how many free devices near them are left."""
    masks = problem.masks
    reach = union(masks[i] for i in chosen)
    left = sum(1 for i, mask in enumerate(masks) if mask & reach and i not in set(chosen))
    return Term("numa_nodes", reach.bit_count()), Term("left_free", left)


# -- distinct ----------------------------------------------------------------------------------------------------------


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
