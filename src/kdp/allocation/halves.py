"""The best of all sets of up to 16 devices, by trying them all: two halves of at most 256 subsets each, put together.

However the links are, symmetric as a torus or random, this takes about the same few milliseconds. Sets whose weakest
link is too weak are kept out by a penalty that no gain outweighs.
"""

from __future__ import annotations

from operator import add, itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Score = tuple[int, int, int]
    """Minus NUMA nodes, minus harm, bits: what decides between sets of equal total."""


def best_of_halves(
    rows: Sequence[Sequence[int]], gains: Sequence[int], size: int, least: int, score: Callable[[list[int]], Score]
) -> list[int]:
    """Return the best ``size`` of the positions 0 to ``len(rows) - 1``.

    Args:
        rows: The weights between them; symmetric.
        gains: What each weighs against what is chosen already.
        size: How many; at least 1.
        least: No pair may be weaker; a set without a weaker pair must exist.
        score: Decides between sets of equal total; called for such sets only.
    """
    count = len(rows)
    penalty = -1 - sum(map(sum, rows)) - sum(gains)
    weights = [[w if w >= least else penalty for w in row] for row in rows]
    left, right = range((count + 1) // 2), range((count + 1) // 2, count)
    left_totals = _totals(weights, gains, left)
    right_totals = _totals(weights, gains, right)
    # By size: which subsets of the right half, how to pick theirs out of a table, their totals, and the highest.
    by_size = [[b for b in range(1 << len(right)) if b.bit_count() == n] for n in range(len(right) + 1)]
    picks = [itemgetter(*subsets) if len(subsets) > 1 else None for subsets in by_size]
    totals = [[right_totals[b] for b in subsets] for subsets in by_size]
    highest = [max(held) for held in totals]
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
        wanted = size - a.bit_count()
        pick = picks[wanted]
        reached = list(map(add, totals[wanted], pick(sums) if pick else (sums[by_size[wanted][0]],)))
        top = left_totals[a] + max(reached)
        if top > best_total:
            best_total, tied = top, []
        if top == best_total:
            tied.append((a, reached))
    chosen = (
        [i for i in left if a >> i & 1] + [j for n, j in enumerate(right) if b >> n & 1]
        for a, reached in tied
        for b, total in zip(by_size[size - a.bit_count()], reached, strict=True)
        if left_totals[a] + total == best_total
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
