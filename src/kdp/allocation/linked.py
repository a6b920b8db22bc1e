"""`linked`: the devices that are best connected to each other. On a tree `kdp.allocation.tree` finds them.

The objective, the most important term first: the weakest link in the set, as strong as can be; the sum of all its
links; few NUMA nodes; little harm (the links between the set and what stays free: a set that leaves whole groups whole
breaks few); the natural order of ids.

On a topology that is no tree (cube meshes, tori) up to 16 devices are tried in all sets, and more by branch and bound.
Three steps: where there are many, a greedy start with swaps, so that there is always an answer; the bottleneck, as the
highest weight at which the devices that are linked at least so well still hold a set of the right size; the total and
what follows it, among those sets. Branch and bound tries the devices in natural order, so of equal sets the first one
found is the first in natural order. Devices of one unit are twins: of a unit's devices the first ones are taken.
"""

from __future__ import annotations

import time
from operator import add
from typing import TYPE_CHECKING

from .problem import Found, OutOfTime, Problem, Term, union
from .tree import best_of_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from .topology import Topology

FEW = 16
"""Up to so many devices to choose among, all sets are tried."""

_LOOK = 64
"""Steps between two looks at the clock."""

_Score = tuple[int, int, int, int, int]
"""Bottleneck, total, minus NUMA nodes, minus harm, bits: the larger the better."""


def linked(problem: Problem, topology: Topology, deadline: float) -> Found:
    """Return the best connected set.

    Exact on a tree of any size, and for any topology within the deadline, which 16 devices never reach.
    """
    topology = topology.covering(device.unit for device in problem.devices)
    if topology.tree is None and problem.size > 1:
        few = len(problem.open) - len(problem.must) <= FEW
        search = _Search(problem, topology, float("inf") if few else deadline)
        try:
            if not few:
                search.start()
            search.prove()
        except OutOfTime:  # what is best then is the answer
            return Found(problem.positions(search.best[4]), proven=False)
        return Found(problem.positions(search.best[4]))
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


class _Search:
    def __init__(self, problem: Problem, topology: Topology, deadline: float) -> None:
        self._problem = problem
        self._deadline = deadline
        self._steps = 0
        devices = problem.devices
        units = [device.unit for device in devices]
        self._rows = [topology.weights(unit, units) for unit in units]
        for i, row in enumerate(self._rows):
            row[i] = 0
        self._harm = [sum(row) for row in self._rows]
        self._masks = problem.masks
        self._must = sorted(problem.must)
        self._rest = [i for i in problem.open if i not in problem.must]
        self._twin = {i: (devices[i].unit, self._masks[i]) for i in self._rest}
        self.best: _Score = (-1, 0, 0, 0, 0)

    def _tick(self) -> None:
        self._steps += 1
        if not self._steps % _LOOK and time.monotonic() > self._deadline:
            raise OutOfTime

    # -- a start -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Find a good set: from the first device on, then from each as time allows, and by exchanging single ones."""
        seeds: list[list[int]] = [self._must] if self._must else [[i] for i in self._rest]
        fast = self._deadline - 0.75 * max(0.0, self._deadline - time.monotonic())
        best: list[int] = []
        for seed in seeds:
            chosen = self._grown(seed)
            score = self._score(chosen)
            if score > self.best:
                self.best, best = score, chosen
            if time.monotonic() > fast:
                break
        while (better := self._exchanged(best, fast)) is not None:
            best = better
            self.best = self._score(best)

    def _grown(self, seed: list[int]) -> list[int]:
        chosen = list(seed)
        left = [i for i in self._rest if i not in seed]
        worst = [min((self._rows[i][j] for j in chosen), default=0) for i in left]
        gain = [sum(self._rows[i][j] for j in chosen) for i in left]
        while len(chosen) < self._problem.size:
            ranked = [(*both, -n) for n, both in enumerate(zip(worst, gain, strict=True))]
            at = -max(ranked)[2]
            taken = left[at]
            chosen.append(taken)
            for held in (left, worst, gain):
                del held[at]
            row = self._rows[taken]
            worst = [min(value, row[i]) for value, i in zip(worst, left, strict=True)]
            if len(chosen) == 1:
                worst = [row[i] for i in left]
            gain = [value + row[i] for value, i in zip(gain, left, strict=True)]
        return chosen

    def _exchanged(self, chosen: list[int], until: float) -> list[int] | None:
        fixed = set(self._must)
        inside = set(chosen)
        for out in sorted(inside - fixed):
            kept = [i for i in chosen if i != out]
            for into in self._rest:
                if into not in inside:
                    if time.monotonic() > until:
                        return None
                    trial = [*kept, into]
                    if self._score(trial) > self.best:
                        return trial
        return None

    def _score(self, chosen: list[int]) -> _Score:
        rows = self._rows
        weights = [rows[a][b] for n, a in enumerate(chosen) for b in chosen[:n]]
        mask = union(self._masks[i] for i in chosen)
        harm = sum(self._harm[i] for i in chosen)
        return min(weights), sum(weights), -mask.bit_count(), -harm, self._problem.bits(chosen)

    # -- the proof -----------------------------------------------------------------------------------------------------

    def prove(self) -> None:
        """Find the best set, or raise `OutOfTime` with ``best`` the best so far."""
        if len(self._must) == self._problem.size:
            self.best = self._score(self._must)
            return
        self._raise_bottleneck()
        least = self.best[0]
        open_ = [i for i in self._rest if all(self._rows[i][j] >= least for j in self._must)]
        gains = [sum(self._rows[i][j] for j in self._must) for i in open_]
        if len(open_) <= FEW:
            self._try_all(open_, gains, least)
        else:
            self._branch(open_, gains, least)

    def _try_all(self, open_: list[int], gains: list[int], least: int) -> None:
        rows = [[self._rows[i][j] for j in open_] for i in open_]
        masks, harm = [self._masks[i] for i in open_], [self._harm[i] for i in open_]
        bits = [self._problem.bit(i) for i in open_]
        fixed = union(self._masks[i] for i in self._must)

        def score(chosen: list[int]) -> tuple[int, int, int]:
            mask = fixed
            for n in chosen:
                mask |= masks[n]
            return -mask.bit_count(), -sum([harm[n] for n in chosen]), sum([bits[n] for n in chosen])

        chosen = best_of_halves(rows, gains, self._problem.size - len(self._must), least, score)
        self.best = self._score([*self._must, *(open_[n] for n in chosen)])

    def _branch(self, open_: list[int], gains: list[int], least: int) -> None:
        rows = self._rows
        # The most that a device can weigh against so many others of a set: each pair is seen from both sides.
        self._reach: dict[int, list[int]] = {}
        for i in open_:
            sums = [0]
            for weight in sorted((rows[i][j] for j in open_ if j != i and rows[i][j] >= least), reverse=True):
                sums.append(sums[-1] + weight)
            self._reach[i] = sums
        mask = union(self._masks[i] for i in self._must)
        total = sum(rows[a][b] for n, a in enumerate(self._must) for b in self._must[:n])
        harm = sum(self._harm[i] for i in self._must)
        # Of sets that are equal in all but the order of ids, the first that is met here is the best.
        self._least, self._equal_is_open = least, True
        self._extend(list(self._must), total, mask, harm, open_, gains)

    def _raise_bottleneck(self) -> None:
        rows, size = self._rows, self._problem.size
        held = min((rows[a][b] for n, a in enumerate(self._must) for b in self._must[:n]), default=None)
        everyone = [*self._must, *self._rest]
        weights = sorted({rows[a][b] for n, a in enumerate(everyone) for b in everyone[:n]})
        weights = [w for w in weights if w > self.best[0] and (held is None or w <= held)]
        low, high = 0, len(weights)
        while low < high:
            middle = (low + high) // 2
            least = weights[middle]
            if time.monotonic() > self._deadline:
                raise OutOfTime
            near = {i: sum(1 << j for j in everyone if j != i and rows[i][j] >= least) for i in everyone}
            candidates = sum(1 << i for i in self._rest)
            for i in self._must:
                candidates &= near[i]
            clique = self._clique(near, candidates, size - len(self._must))
            if clique is None:
                high = middle
            else:
                chosen = [*self._must, *clique]
                self.best = max(self.best, self._score(chosen))
                low = middle + 1

    def _clique(self, near: dict[int, int], candidates: int, size: int) -> list[int] | None:
        """Return so many candidates that are all near each other."""
        self._tick()
        if size == 0:
            return []
        while candidates.bit_count() >= size:
            lowest = candidates & -candidates
            candidates ^= lowest
            i = lowest.bit_length() - 1
            inside = candidates & near[i]
            if inside.bit_count() >= size - 1:
                found = self._clique(near, inside, size - 1)
                if found is not None:
                    return [i, *found]
        return None

    def _extend(self, chosen: list[int], total: int, mask: int, harm: int, open_: list[int], gains: list[int]) -> None:
        wanted = self._problem.size - len(chosen)
        if wanted == 0:
            score = (self._least, total, -mask.bit_count(), -harm, self._problem.bits(chosen))
            if score[:4] > self.best[:4] or (score[:4] == self.best[:4] and score[4] >= self.best[4]):
                self.best = score
                self._equal_is_open = False
            return
        reach, rows, least = self._reach, self._rows, self._least
        # Twice what each could add: twice to those chosen, once (of two ends) to those that follow.
        most = [2 * gain + reach[i][min(wanted - 1, len(reach[i]) - 1)] for i, gain in zip(open_, gains, strict=True)]
        skipped: set[tuple[str, int]] = set()
        for at, i in enumerate(open_):
            if len(open_) - at < wanted:
                return
            self._tick()
            if self._cannot_win(total, mask, harm, open_[at:], most[at:], wanted):
                return
            twin = self._twin[i]
            if twin in skipped:
                continue
            skipped.add(twin)  # from here on this one is left out, and with it its later twins
            row = rows[i]
            kept: list[int] = []
            kept_gains: list[int] = []
            for j, gain in zip(open_[at + 1 :], gains[at + 1 :], strict=True):
                if row[j] >= least and (self._twin[j] == twin or self._twin[j] not in skipped):
                    kept.append(j)
                    kept_gains.append(gain + row[j])
            self._extend([*chosen, i], total + gains[at], mask | self._masks[i], harm + self._harm[i], kept, kept_gains)

    def _cannot_win(self, total: int, mask: int, harm: int, open_: list[int], most: list[int], wanted: int) -> bool:
        bound = total + sum(sorted(most, reverse=True)[:wanted]) // 2
        best = self.best
        if bound != best[1]:
            return bound < best[1]
        nodes = -mask.bit_count()
        if nodes != best[2]:
            return nodes < best[2]
        least_harm = -harm - sum(sorted([self._harm[i] for i in open_])[:wanted])
        if least_harm != best[3]:
            return least_harm < best[3]
        return not self._equal_is_open


def best_of_halves(
    rows: Sequence[Sequence[int]],
    gains: Sequence[int],
    size: int,
    least: int,
    score: Callable[[list[int]], tuple[int, int, int]],
) -> list[int]:
    """Return the best ``size`` of the positions 0 to ``len(rows) - 1``, by trying all sets.

    Two halves of at most 256 subsets each are put together. However the links are, symmetric as a torus or random, this
    takes about the same few milliseconds. Sets whose weakest link is too weak are kept out by a penalty that no gain
    outweighs.

    Args:
        rows: The weights between them; symmetric.
        gains: What each weighs against what is chosen already.
        size: How many; at least 1.
        least: No pair may be weaker; a set without a weaker pair must exist.
        score: Minus NUMA nodes, minus harm, bits: decides between sets of equal total; called for such sets only.
    """
    count = len(rows)
    penalty = -1 - sum(map(sum, rows)) - sum(gains)
    weights = [[w if w >= least else penalty for w in row] for row in rows]
    left, right = range((count + 1) // 2), range((count + 1) // 2, count)
    left_totals = _totals(weights, gains, left)
    right_totals = _totals(weights, gains, right)
    by_size = [[b for b in range(1 << len(right)) if b.bit_count() == n] for n in range(len(right) + 1)]
    highest = [max(right_totals[b] for b in subsets) for subsets in by_size]
    # The most that each subset of the left half can reach; the most promising one comes first, so that others are left
    # out soon.
    across = _across(weights, left, right)
    promising: list[tuple[int, int]] = []
    for a, own in enumerate(left_totals):
        wanted = size - a.bit_count()
        if own >= 0 and 0 <= wanted <= len(right):
            promising.append((own + highest[wanted] + sum(sorted(across[a], reverse=True)[:wanted]), a))
    promising.sort(reverse=True)
    best_total = penalty
    tied: list[tuple[int, list[int]]] = []
    for most, a in promising:
        if most < best_total:
            break
        sums = [0]
        for weight in across[a]:
            sums += [weight + total for total in sums]
        reached = [left_totals[a] + right_totals[b] + sums[b] for b in by_size[size - a.bit_count()]]
        if max(reached) > best_total:
            best_total, tied = max(reached), []
        tied.append((a, reached))
    chosen = (
        [i for i in left if a >> i & 1] + [j for n, j in enumerate(right) if b >> n & 1]
        for a, reached in tied
        for b, total in zip(by_size[size - a.bit_count()], reached, strict=True)
        if total == best_total
    )
    return max((score(each), each) for each in chosen)[1]


def _across(weights: Sequence[Sequence[int]], left: range, right: range) -> list[list[int]]:
    """Return what each subset of the left half weighs against each of the right, by the subset as bits."""
    across = [[0] * len(right)]
    for i in left:
        row = weights[i][right.start : right.stop]
        across += [list(map(add, row, others)) for others in across]
    return across


def _totals(weights: Sequence[Sequence[int]], gains: Sequence[int], half: range) -> list[int]:
    """Return each subset's total, by the subset as bits."""
    totals = [0]
    for n, i in enumerate(half):
        pairs = [0]
        for j in half[:n]:
            pairs += [weights[i][j] + total for total in pairs]
        totals += [total + gains[i] + pair for total, pair in zip(totals, pairs, strict=True)]
    return totals
