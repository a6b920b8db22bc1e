"""`linked`: the devices that are best connected to each other. Chooses the search and says the objective.

The objective, the most important term first: the weakest link in the set, as strong as can be; the sum of all its
links; few NUMA nodes; little harm (the links between the set and what stays free: a set that leaves whole groups whole
breaks few); the natural order of ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .mesh import best_of_mesh
from .problem import Found, OutOfTime, Problem, Term
from .tree import best_of_tree

if TYPE_CHECKING:
    from collections.abc import Collection

    from .topology import Topology


def linked(problem: Problem, topology: Topology, deadline: float) -> Found:
    """Return the best connected set.

    Exact on a tree of any size, and for any topology within the deadline, which 16 devices never reach.
    """
    topology = topology.covering(device.unit for device in problem.devices)
    if topology.tree is None and problem.size > 1:
        bits, proven = best_of_mesh(problem, topology, deadline=deadline)
        return Found(problem.positions(bits), proven)
    if topology.tree is None:
        terms = {i: linked_terms(problem, topology, (i,)) for i in problem.must or problem.open}
        return Found((max(terms, key=lambda i: (*(term.rank for term in terms[i]), -i)),))
    try:
        return Found(problem.positions(best_of_tree(problem, topology, deadline=deadline)))
    except OutOfTime:  # the NUMA nodes cut across the links in too many ways; without them it is fast
        bits = best_of_tree(problem, topology, deadline=float("inf"), numa=False)
        return Found(problem.positions(bits), proven=False)


def linked_terms(problem: Problem, topology: Topology, chosen: Collection[int]) -> tuple[Term, ...]:
    """Return the objective's values for a set of positions."""
    topology = topology.covering(device.unit for device in problem.devices)
    held = set(chosen)
    inside = [device.unit for i, device in enumerate(problem.devices) if i in held]
    free = [device.unit for i, device in enumerate(problem.devices) if i not in held]
    weights = [weight for n, unit in enumerate(inside) for weight in topology.weights(unit, inside[:n])]
    harm = sum(sum(topology.weights(unit, free)) for unit in inside)
    nodes = {node for i in held for node in problem.devices[i].numa_nodes}
    return (
        Term("bottleneck", min(weights, default=None), larger_is_better=True, scale=topology.scale),
        Term("total", sum(weights), larger_is_better=True, scale=topology.scale),
        Term("numa_nodes", len(nodes)),
        Term("harm", harm, scale=topology.scale),
    )
