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

__all__ = ["best_of_halves"]


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
    best_total = penalty
    best: tuple[Score, list[int]] | None = None
    for a, own in enumerate(left_totals):
        wanted = size - a.bit_count()
        if own < 0 or not 0 <= wanted <= len(right):
            continue
        inside = [i for i in left if a >> i & 1]
        across = [sum([weights[i][j] for i in inside]) for j in right]
        if own + highest[wanted] + sum(sorted(across, reverse=True)[:wanted]) < best_total:
            continue
        sums = [0]
        for weight in across:
            sums += [weight + total for total in sums]
        pick, subsets = picks[wanted], by_size[wanted]
        reached = list(map(add, totals[wanted], pick(sums) if pick else (sums[subsets[0]],)))
        top = own + max(reached)
        if top < best_total:
            continue
        if top > best_total:
            best_total, best = top, None
        for b, total in zip(subsets, reached, strict=True):
            if own + total == top:
                chosen = inside + [j for n, j in enumerate(right) if b >> n & 1]
                value = score(chosen), chosen
                best = max(best, value) if best is not None else value
    assert best is not None
    return best[1]


def _totals(weights: Sequence[Sequence[int]], gains: Sequence[int], half: range) -> list[int]:
    """Return each subset's total, by the subset as bits."""
    totals = [0]
    for n, i in enumerate(half):
        pairs = [0]
        for j in half[:n]:
            pairs += [weights[i][j] + total for total in pairs]
        totals += [total + gains[i] + pair for total, pair in zip(totals, pairs, strict=True)]
    return totals
