"""The best set on an ultrametric topology: exact for any number of devices, by dynamic programming over the tree.

On a tree the weight between two devices is that of the node where their ways part. So a set's total depends only on how
many devices each part gives, and tables "best with j devices of this part" are put together from the children's. One
number carries what adds up, in the order of its importance: total weight, then harm, then the natural order of ids
(whose bits are the set itself). What does not add up, the number of NUMA nodes, is carried as a mask, and only where
a part spans several of them.
"""

from __future__ import annotations

import time
from operator import add
from typing import TYPE_CHECKING

import attrs

from .problem import OutOfTime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .problem import Problem
    from .topology import Branch, Topology

FREE_STEPS = 20_000
"""Pairs of masks that are put together without a look at the clock: trees of NUMA nodes need a few hundred, so their
answers are exact also on a machine that is busy with other things."""

_Row = dict[int, int]
"""By mask of NUMA nodes: the best key with it. All keys of a row have the same total weight."""


@attrs.define
class _Part:
    """A part of the tree, with only what is available: a group of twins, or children.

    Attributes:
        weight: Between two devices of different children, or of the group.
        size: How many devices of it may be chosen.
        must: How many have to be.
        free: How many are available, the barred ones counted.
        children: Its parts.
        members: The group's positions that may be chosen, those that have to be first.
        mask: The group's NUMA nodes.
        harm: The weight from one device of the group to all that is available.
    """

    weight: int
    size: int
    must: int
    free: int
    children: list[_Part] = attrs.field(factory=list["_Part"])
    members: list[int] = attrs.field(factory=list[int])
    mask: int = 0
    harm: int = 0

    @property
    def masks(self) -> set[int]:
        return {mask for child in self.children for mask in child.masks} if self.children else {self.mask}


def best_of_tree(problem: Problem, topology: Topology, *, deadline: float, numa: bool = True) -> int:
    """Return the best set's bits.

    Args:
        problem: The question.
        topology: Must have a tree, and know all units.
        deadline: On `time.monotonic`'s clock. Only topologies whose NUMA nodes cut across the tree come near it.
        numa: Whether the number of NUMA nodes counts.

    Raises:
        OutOfTime: The deadline is over.
    """
    return _Tables(problem, _pruned(problem, topology, numa=numa), deadline).best()


def _pruned(problem: Problem, topology: Topology, *, numa: bool) -> _Part:
    """Return the topology's tree without what is not available, its twins put into groups."""
    masks = problem.masks if numa else [0] * len(problem.devices)
    by_unit: dict[str, list[int]] = {}
    for position, device in enumerate(problem.devices):
        by_unit.setdefault(device.unit, []).append(position)

    def prune(branch: Branch) -> _Part | None:
        if not branch.children:
            held = by_unit.get(branch.unit)
            return unit(branch.unit, held) if held else None
        children: list[_Part] = []
        alone: dict[int, list[int]] = {}
        for child in branch.children:
            if not child.children and len(positions := by_unit.get(child.unit, [])) == 1:
                # Single devices side by side have equal links: they are twins, one group for each mask.
                alone.setdefault(masks[positions[0]], []).append(positions[0])
            elif (part := prune(child)) is not None:
                children.append(part)
        children.extend(group(branch.weight, mask, positions) for mask, positions in alone.items())
        if len(children) <= 1 and not alone:
            return children[0] if children else None
        return _joined(branch.weight, children)

    def unit(name: str, positions: list[int]) -> _Part:
        by_mask: dict[int, list[int]] = {}
        for position in positions:
            by_mask.setdefault(masks[position], []).append(position)
        weight = topology.weight(name, name)
        return _joined(weight, [group(weight, mask, held) for mask, held in by_mask.items()])

    def group(weight: int, mask: int, positions: list[int]) -> _Part:
        must = [i for i in positions if i in problem.must]
        others = [i for i in positions if i not in problem.must and i not in problem.barred]
        members = [*must, *sorted(others)]
        return _Part(weight, len(members), len(must), len(positions), members=members, mask=mask)

    assert topology.tree is not None
    root = prune(topology.tree)
    assert root is not None
    _spread_harm(root, 0)
    return root


def _spread_harm(part: _Part, above: int) -> None:
    """Tell each group how much one of its devices weighs against all that is available."""
    for child in part.children:
        outside = above + part.weight * (part.free - child.free)
        if child.children:
            _spread_harm(child, outside)
        else:
            child.harm = outside + child.weight * (child.free - 1)


class _Tables:
    """The dynamic programme. A key is total << shift, minus harm << bits, plus the set's own bits."""

    def __init__(self, problem: Problem, root: _Part, deadline: float) -> None:
        self._problem = problem
        self._root = root
        self._deadline = deadline
        self._steps = 0
        self._bits = len(problem.devices)
        most = sum(abs(group.harm) * group.size for group in _groups(root))
        self._shift = self._bits + most.bit_length() + 2
        self._half = 1 << (self._shift - 1)
        self._top = root

    def best(self) -> int:
        size, must = self._problem.size, len(self._problem.must)
        if size == 1:
            tops = _groups(self._root)
        else:  # the bottleneck is the weight of the part that holds them all: the highest that can
            parts = [p for p in _parts(self._root) if p.children and p.size >= size and p.must == must]
            highest = max(part.weight for part in parts)
            tops = [part for part in parts if part.weight == highest]
        best: tuple[int, int, int] | None = None
        for top in tops:
            if top.size < size or top.must != must:
                continue
            for mask, key in self._row_of_top(top).items():
                rank = (self._total(key), -mask.bit_count(), key)
                best = max(best, rank) if best is not None else rank
        assert best is not None
        return best[2] & ((1 << self._bits) - 1)

    def _total(self, key: int) -> int:
        return (key + self._half) >> self._shift

    def _row_of_top(self, top: _Part) -> _Row:
        size = self._problem.size
        self._top = top
        if len(masks := top.masks) == 1:
            (mask,) = masks
            low, keys = self._keys(top, only=True)
            return {mask: keys[size - low]}
        low, rows = self._rows(top, only=True)
        return rows[size - low]

    def _range(self, part: _Part) -> tuple[int, int]:
        """The least and the most that a part can give to a set of the right size."""
        size = self._problem.size
        return max(part.must, size - (self._top.size - part.size)), min(part.size, size)

    # -- where all devices have the same NUMA nodes: one key for each number of devices --------------------------------

    def _keys(self, part: _Part, *, only: bool = False) -> tuple[int, list[int]]:
        """Return the best keys by number of devices, from the least number on; ``only``: of the top, the one wanted."""
        low, high = self._range(part)
        if not part.children:
            return low, self._group_keys(part, low, high)
        children = sorted(part.children, key=lambda child: child.size)
        if len(children) == 1:
            child_low, keys = self._keys(children[0])
            return low, keys[low - child_low : high - child_low + 1]
        return self._chain_keys(children, part.weight, low, high, only=only)

    def _chain_keys(
        self, children: list[_Part], weight: int, low: int, high: int, *, only: bool = False
    ) -> tuple[int, list[int]]:
        """Put children together: between them are pairs of this weight.

        There are (j² - j1² - j2² - ...) / 2 of them if the children give j1, j2, ... of j devices. So with the squares
        taken off first and added last, the tables simply add up.
        """
        square = weight << self._shift
        done_low, done = 0, [0]
        for number, child in enumerate(children, start=1):
            child_low, keys = self._keys(child)
            keys = [2 * key - square * count * count for count, key in enumerate(keys, start=child_low)]
            first, last = done_low + child_low, min(high, done_low + len(done) - 1 + child_low + len(keys) - 1)
            if number == len(children):
                first = last if only else max(low, first)
            done = [max(map(add, *pair)) for pair in _splits(done_low, done, child_low, keys, first, last)]
            done_low = first
        return done_low, [(key + square * count * count) // 2 for count, key in enumerate(done, start=done_low)]

    def _group_keys(self, group: _Part, low: int, high: int) -> list[int]:
        bits = self._problem.bits(group.members[:low])
        keys: list[int] = []
        for count in range(low, high + 1):
            if count > low:
                bits += self._problem.bit(group.members[count - 1])
            total = group.weight * (count * (count - 1) // 2)
            keys.append((total << self._shift) - ((group.harm * count) << self._bits) + bits)
        return keys

    # -- where several NUMA nodes meet: a row of keys by mask ----------------------------------------------------------

    def _rows(self, part: _Part, *, only: bool = False) -> tuple[int, list[_Row]]:
        low, high = self._range(part)
        alike: dict[int, list[_Part]] = {}
        mixed: list[_Part] = []
        for child in part.children:
            masks = child.masks
            if len(masks) == 1:
                alike.setdefault(masks.pop(), []).append(child)
            else:
                mixed.append(child)
        tables = [self._one_mask(children, mask, part.weight) for mask, children in alike.items()]
        tables.extend(self._rows(child) for child in mixed)
        tables.sort(key=lambda table: len(table[1]))
        done_low, done = tables[0]
        for number, (child_low, rows) in enumerate(tables[1:], start=2):
            is_last = number == len(tables)
            last = min(high, done_low + len(done) - 1 + child_low + len(rows) - 1)
            first = last if is_last and only else max(low, done_low + child_low) if is_last else done_low + child_low
            done = self._joined_rows(done_low, done, child_low, rows, part.weight, first, last)
            done_low = first
        if len(tables) == 1:
            return low, done[low - done_low : high - done_low + 1]
        return done_low, done

    def _one_mask(self, children: list[_Part], mask: int, weight: int) -> tuple[int, list[_Row]]:
        children.sort(key=lambda child: child.size)
        if len(children) == 1:
            low, keys = self._keys(children[0])
        else:
            whole = _joined(weight, children)
            low, high = self._range(whole)
            low, keys = self._chain_keys(children, weight, low, high)
        return low, [{mask if count else 0: key} for count, key in enumerate(keys, start=low)]

    def _joined_rows(
        self, low_a: int, a: list[_Row], low_b: int, b: list[_Row], weight: int, first: int, last: int
    ) -> list[_Row]:
        totals_a = [self._total(next(iter(row.values()))) for row in a]
        totals_b = [self._total(next(iter(row.values()))) for row in b]
        joined: list[_Row] = []
        for count, (part_a, part_b) in enumerate(_splits(low_a, totals_a, low_b, totals_b, first, last), start=first):
            start = max(low_b, count - (low_a + len(a) - 1))
            offset = count - low_a
            totals = [
                x + y + weight * (i * (count - i)) for i, (x, y) in enumerate(zip(part_a, part_b, strict=True), start)
            ]
            highest = max(totals)
            row: _Row = {}
            for i, total in enumerate(totals, start=start):
                if total == highest:
                    cross = (weight * (i * (count - i))) << self._shift
                    for mask_a, key_a in a[offset - i].items():
                        for mask_b, key_b in b[i - low_b].items():
                            mask, key = mask_a | mask_b, key_a + key_b + cross
                            if key > row.get(mask, key - 1):
                                row[mask] = key
                    self._steps += len(a[offset - i]) * len(b[i - low_b])
                    if self._steps > FREE_STEPS and time.monotonic() > self._deadline:
                        raise OutOfTime
            joined.append(row)
        return joined


def _splits(
    low_a: int, a: list[int], low_b: int, b: list[int], first: int, last: int
) -> Iterator[tuple[list[int], list[int]]]:
    """For each count from first to last, the entries of two tables whose numbers add up to it, side by side."""
    mirrored = a[::-1]  # entry n belongs to the number high_a - n
    high_a, high_b = low_a + len(a) - 1, low_b + len(b) - 1
    for count in range(first, last + 1):
        start, end = max(low_b, count - high_a), min(high_b, count - low_a)
        offset = high_a - count + start
        yield mirrored[offset : offset + end - start + 1], b[start - low_b : end - low_b + 1]


def _joined(weight: int, children: list[_Part]) -> _Part:
    size = must = free = 0
    for child in children:
        size, must, free = size + child.size, must + child.must, free + child.free
    return _Part(weight, size, must, free, children)


def _parts(part: _Part) -> list[_Part]:
    return [part, *(found for child in part.children for found in _parts(child))]


def _groups(part: _Part) -> list[_Part]:
    return [found for found in _parts(part) if not found.children]
