"""Which device lies in which slice: in the order that was given, with least change.

Slices are leaves in a row, as those of a B-tree. The order of the devices is their preference, and it always holds: all
of a leaf come before all of the next. What keeps its place in the order keeps its leaf, so that a device that comes,
goes or changes touches one slice; only a leaf that overflows is divided, and only when the leaves have become so empty
that half as many would do are all of them filled anew.

Sans-IO and pure: the same input gives the same leaves. A leaf's position is the first part of its slice's name, which
is how the previous leaves are found after a restart.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

GAP = 0x100
"""Positions between two leaves, so that a divided one finds a place for its half."""

LAST = 0x7FFFF
"""The last position."""


@final
@attrs.frozen
class Item:
    """What cannot be divided: a device, or several that must share a slice.

    Attributes:
        names: Their names, in their order.
        weight: How much of each kind of room they take.
    """

    names: tuple[str, ...]
    weight: tuple[int, ...]


@final
@attrs.frozen
class Leaf:
    """One slice's place.

    Attributes:
        position: Grows from leaf to leaf.
        names: What lies in it, in order.
    """

    position: int
    names: tuple[str, ...]


def place(items: Sequence[Item], room: tuple[int, ...], previous: Sequence[Leaf] = ()) -> tuple[Leaf, ...]:
    """Return the leaves for these items.

    Args:
        items: All of them, in order; each fits into an empty leaf.
        room: How much of each kind a leaf has.
        previous: The previous leaves, in order.

    Returns:
        At least one leaf; it is empty if there are no items.
    """
    runs = _spread(_runs(items, len(previous), _homes(previous)), room)
    found: list[tuple[int | None, list[Item]]] = []
    for index, run in enumerate(runs):
        halves = _divided(run, room, is_last=not any(runs[index + 1 :]))
        found += [
            (previous[index].position if index < len(previous) and not nth else None, half)
            for nth, half in enumerate(halves)
            if half
        ]
    fresh = list(_filled(items, room))
    if len(found) > 2 * max(1, len(fresh)):
        kept = [position for position, _ in found]
        found = list(zip(kept, fresh, strict=False))
    if not found:
        found = [(previous[0].position if previous else None, [])]
    return tuple(
        Leaf(position, tuple(name for item in run for name in item.names))
        for position, (_, run) in zip(_positions([position for position, _ in found]), found, strict=True)
    )


def _homes(previous: Sequence[Leaf]) -> Mapping[str, int]:
    return {name: index for index, leaf in enumerate(previous) for name in leaf.names}


def _runs(items: Sequence[Item], count: int, homes: Mapping[str, int]) -> list[list[Item]]:
    """Give each item a leaf: its own where that agrees with the order, else that of the item before it."""
    known = [homes.get(item.names[0]) for item in items]
    anchors = _longest_rising(known)
    runs: list[list[Item]] = [[] for _ in range(max(1, count))]
    first = min((home for index, home in enumerate(known) if index in anchors and home is not None), default=0)
    at = first
    for index, item in enumerate(items):
        home = known[index]
        if index in anchors and home is not None:
            at = home
        runs[at].append(item)
    return runs


def _longest_rising(homes: Sequence[int | None]) -> frozenset[int]:
    """Return the indices of a longest part of it that never falls; None belongs to no part."""
    tails: list[int] = []
    ends: list[int] = []
    before: dict[int, int | None] = {}
    for index, home in enumerate(homes):
        if home is None:
            continue
        at = bisect_right(tails, home)
        before[index] = ends[at - 1] if at else None
        if at == len(tails):
            tails.append(home)
            ends.append(index)
        else:
            tails[at], ends[at] = home, index
    found: set[int] = set()
    last = ends[-1] if ends else None
    while last is not None:
        found.add(last)
        last = before[last]
    return frozenset(found)


def _spread(runs: list[list[Item]], room: tuple[int, ...]) -> list[list[Item]]:
    """Let a run that overflows give its last items to the next leaf if that has room for all of them."""
    for index in range(len(runs) - 1):
        fits = _prefix(runs[index], room)
        rest = runs[index][fits:]
        if rest and runs[index + 1] and _fits([*rest, *runs[index + 1]], room):
            runs[index], runs[index + 1] = runs[index][:fits], [*rest, *runs[index + 1]]
    return runs


def _divided(run: list[Item], room: tuple[int, ...], *, is_last: bool) -> list[list[Item]]:
    """Divide a run that overflows: the last one is filled, as more will come behind it; another is halved."""
    if _fits(run, room):
        return [run]
    if is_last or len(run) < 2:
        return list(_filled(run, room))
    middle = len(run) // 2
    return [*_divided(run[:middle], room, is_last=False), *_divided(run[middle:], room, is_last=False)]


def _filled(items: Sequence[Item], room: tuple[int, ...]) -> Iterator[list[Item]]:
    """Fill one leaf after the other."""
    left = list(items)
    while left:
        fits = max(1, _prefix(left, room))
        yield left[:fits]
        left = left[fits:]


def _prefix(items: Sequence[Item], room: tuple[int, ...]) -> int:
    """Return how many of the items, from the first, a leaf has room for."""
    taken = (0,) * len(room)
    for count, item in enumerate(items):
        taken = tuple(one + more for one, more in zip(taken, item.weight, strict=True))
        if any(one > most for one, most in zip(taken, room, strict=True)):
            return count
    return len(items)


def _fits(items: Sequence[Item], room: tuple[int, ...]) -> bool:
    return _prefix(items, room) == len(items)


def _positions(kept: Sequence[int | None]) -> list[int]:
    """Give the new leaves positions between those of the kept ones; where there is no room, all get new ones."""
    found: list[int] = []
    for index, position in enumerate(kept):
        if position is None:
            below = found[-1] if found else 0
            above = next((p for p in kept[index:] if p is not None), None)
            waiting = next((n for n, p in enumerate(kept[index:]) if p is not None), 1)
            step = GAP if above is None else (above - below) // (waiting + 1)
            position = below + step
        if position <= (found[-1] if found else 0) or position > LAST:
            return [GAP * (place + 1) for place in range(len(kept))]
        found.append(position)
    return found
