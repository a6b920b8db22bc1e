"""`Topology`: how well units are connected, checked and put in the form that the searches want.

It is made when ``DeviceBackend.links`` has answered, never inside a request of the kubelet. Weights are held as
integers (the vendor's numbers times one common power of two), so that sums are exact and ties are real ties.

A matrix is *ultrametric* if of any three units the two weaker links are equal: PCIe switches, NUMA, partitions, a
switch fabric. Then it is a tree whose nodes carry the weight between their children, and the best set is found exactly
for any number of devices (`kdp.allocation.tree`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

import attrs

from ..errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


@final
@attrs.frozen
class Branch:
    """A node of the tree: so many units, and the weight between those of different children.

    Attributes:
        weight: Between any two units of different children; of a single unit: 0 and without meaning.
        children: The parts; empty: this is one unit.
        unit: The unit, if it is one.
    """

    weight: int
    children: tuple[Branch, ...]
    unit: str = ""


@final
class Topology:
    """The links between units; a value that nobody changes.

    Args:
        units: All units.
        links: Weights by pair of units, in either order; a missing pair counts 0, a pair of a unit with itself says
            how near its own devices are to each other (default: twice the strongest link, so nearer than any other).

    Attributes:
        scale: What the weights were multiplied by.
        tree: The tree if the matrix is ultrametric, else None.

    Raises:
        InvalidValueError: A weight is negative, not finite or no number, the two orders of a pair differ, or none of
            the pairs is of known units.
    """

    def __init__(self, units: Iterable[str], links: Mapping[tuple[str, str], float]) -> None:
        self._links = dict(links)
        self._index = {unit: i for i, unit in enumerate(sorted(set(units)))}
        checked = _checked(self._index, links)
        ratios = {pair: weight.as_integer_ratio() for pair, weight in checked.items()}
        self.scale = math.lcm(*(below for _, below in ratios.values()))
        exact = {pair: above * (self.scale // below) for pair, (above, below) in ratios.items()}
        # Units without a link have no row: ten thousand of them would be a matrix of a gigabyte that says nothing.
        linked = {unit for pair in exact for unit in pair}
        self._place = {unit: i for i, unit in enumerate(unit for unit in self._index if unit in linked)}
        self._nearest = 2 * max((w for (a, b), w in exact.items() if a != b), default=0) or self.scale
        count = len(self._place)
        self._rows = [[0] * count for _ in range(count)]
        for i in range(count):
            self._rows[i][i] = self._nearest
        for (a, b), weight in exact.items():
            i, j = self._place[a], self._place[b]
            self._rows[i][j] = self._rows[j][i] = weight
        self.tree = self._tree()
        self._wider: Topology | None = None

    @property
    def links(self) -> Mapping[tuple[str, str], float]:
        """The weights as they were given, of units that are known; each pair once, and none of a unit with itself."""
        return {
            (min(pair), max(pair)): weight
            for pair, weight in self._links.items()
            if pair[0] != pair[1] and pair[0] in self._index and pair[1] in self._index
        }

    def weight(self, a: str, b: str) -> int:
        """Return the weight between two known units, or within one, times ``scale``."""
        i, j = self._place.get(a), self._place.get(b)
        if i is None or j is None:
            # Unknown ones are a KeyError in either case.
            return self._nearest if self._index[a] == self._index[b] else 0
        return self._rows[i][j]

    def weights(self, unit: str, others: Collection[str]) -> list[int]:
        """Return the weights between one known unit and each of others, in their order, times ``scale``."""
        place = self._place
        try:
            row = self._rows[place[unit]]
            return [row[place[other]] for other in others]
        except KeyError:  # one of them has no links
            return [self.weight(unit, other) for other in others]

    def covering(self, units: Iterable[str]) -> Topology:
        """Return this, or if units are not known here the same links with those added, unconnected."""
        wanted = set(units)
        if wanted <= self._index.keys():
            return self
        if self._wider is None or not wanted <= self._wider._index.keys():
            known = {pair: w for pair, w in self._links.items() if pair[0] in self._index and pair[1] in self._index}
            self._wider = Topology(wanted | self._index.keys(), known)
        return self._wider

    def _tree(self) -> Branch | None:
        """Return the matrix as a tree; None: it is none."""
        names, rows = list(self._place), self._rows

        def grow(members: list[int]) -> Branch | None:
            if len(members) == 1:
                return Branch(0, (), names[members[0]])
            first, rest = members[0], members[1:]
            # In an ultrametric matrix each unit has a partner in another part, so one row shows the smallest weight.
            weight = min(rows[first][other] for other in rest)
            parts: list[list[int]] = []
            left = members
            while left:
                row = rows[left[0]]
                part = [left[0], *(other for other in left[1:] if row[other] > weight)]
                inside = set(part)
                left = [other for other in left if other not in inside]
                if any(rows[a][b] != weight for a in part for b in left):
                    return None
                parts.append(part)
            children: list[Branch] = []
            for part in parts:
                child = grow(part)
                if child is None:
                    return None
                children.append(child)
            return Branch(weight, tuple(children))

        if not self._index:
            return None
        for i, row in enumerate(rows):
            if any(other > row[i] for other in row):  # a unit whose own devices are not the nearest
                return None
        alone = [Branch(0, (), unit) for unit in self._index if unit not in self._place]
        if not names:
            return alone[0] if len(alone) == 1 else Branch(0, tuple(alone))
        tree = grow(list(range(len(names))))
        if tree is None or not alone:
            return tree
        parts = tree.children if tree.children and tree.weight == 0 else (tree,)
        return Branch(0, tuple(sorted((*parts, *alone), key=_first)))


def _first(branch: Branch) -> str:
    """Return the first unit of a part."""
    while branch.children:
        branch = branch.children[0]
    return branch.unit


def _checked(known: Mapping[str, int], links: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    checked: dict[tuple[str, str], float] = {}
    strangers: list[str] = []
    for pair, weight in links.items():
        if not isinstance(pair, tuple) or len(pair) != 2:  # pyright: ignore[reportUnnecessaryIsInstance, reportUnnecessaryComparison]
            raise InvalidValueError(f"link {pair!r}: must be a pair of units; for example ('gpu-0', 'gpu-1')")
        a, b = pair
        is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_number or not math.isfinite(weight) or weight < 0:
            raise InvalidValueError(
                f"link {a!r} to {b!r}: {weight!r} must be a finite number of 0 or more; for example 50"
            )
        if a not in known or b not in known:
            strangers.append(a if a not in known else b)
            continue
        if checked.get((b, a), weight) != weight:
            raise InvalidValueError(
                f"link {a!r} to {b!r} is {weight:g}, in reverse it is {checked[b, a]:g}: both must be the same; "
                "leave one of "
                "them out"
            )
        checked[a, b] = weight
    if strangers and not checked:
        raise InvalidValueError(
            f"links name {strangers[0]!r}, and no unit of the devices: the keys must be units (Device.unit); "
            "for example "
            f"{next(iter(known), 'gpu-0')!r}"
        )
    return checked


def links_of_matrix(units: Sequence[str], matrix: Sequence[Sequence[float]]) -> dict[tuple[str, str], float]:
    """Return a square matrix as ``DeviceBackend.links`` wants it. The diagonal is not read.

    Args:
        units: The name of each row and column.
        matrix: The weights; larger is better.

    Raises:
        InvalidValueError: It is not square, not as large as the units are many, or not symmetric, or a weight is
            negative or not finite.
    """
    count = len(units)
    if len(set(units)) != count:
        raise InvalidValueError(f"units {list(units)!r}: each must be named once")
    if len(matrix) != count:
        raise InvalidValueError(f"the matrix has {len(matrix)} rows for {count} units: there must be one for each")
    for unit, row in zip(units, matrix, strict=True):
        if len(row) != count:
            raise InvalidValueError(
                f"the row of {unit!r} has {len(row)} weights for {count} units: there must be one for each"
            )
    links = {(a, b): matrix[i][j] for i, a in enumerate(units) for j, b in enumerate(units) if i != j}
    Topology(units, links)
    return links
