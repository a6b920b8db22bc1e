"""What is asked and what is answered: `Problem`, `Term` and `Choice`. Values only; the searches are in other files.

A search works on positions in the natural order of the ids (``gpu-2`` before ``gpu-10``). A set of positions is one
integer whose highest bit is position 0: of two sets of one size, the larger integer is the one that comes first in
natural order. So "the first in natural order" is a maximum that can be added up, and every search is deterministic.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import final

import attrs

from ..errors import InvalidValueError
from ..model.devices import Device
from ..model.names import natural


def union(masks: Iterable[int]) -> int:
    """Return the NUMA nodes of several masks as one mask."""
    return functools.reduce(int.__or__, masks, 0)


class OutOfTime(Exception):
    """A search has used up its budget."""


@final
@attrs.frozen
class Problem:
    """Choose ``size`` of these devices. Make one with `of`.

    Attributes:
        devices: The available ones, in natural order of their ids.
        must: Positions that have to be chosen.
        size: How many in all.
        barred: Positions that may not be chosen but stay free for others, as a question for the second best needs it.
    """

    devices: tuple[Device, ...]
    must: frozenset[int]
    size: int
    barred: frozenset[int] = frozenset()

    @classmethod
    def of(cls, available: Iterable[Device], must_include: Iterable[str], size: int) -> Problem:
        """Check a question and put it in order.

        Args:
            available: The devices that are free, those of ``must_include`` among them.
            must_include: Ids that are already chosen.
            size: How many are wanted in all, those of ``must_include`` counted.

        Raises:
            InvalidValueError: The question has no answer.
        """
        by_id = {device.id: device for device in available}
        must = sorted(set(must_include))
        if missing := [name for name in must if name not in by_id]:
            raise InvalidValueError(f"must-include {missing[0]!r}: must be one of the available devices")
        if size < 1:
            raise InvalidValueError(f"size {size}: must be 1 or more; for example 2")
        if size > len(by_id):
            raise InvalidValueError(f"size {size}: only {len(by_id)} devices are available; ask for at most that many")
        if len(must) > size:
            raise InvalidValueError(f"size {size}: {len(must)} devices must be included; ask for at least that many")
        devices = tuple(by_id[name] for name in sorted(by_id, key=natural))
        return cls(devices, frozenset(i for i, device in enumerate(devices) if device.id in must), size)

    @property
    def open(self) -> list[int]:
        """The positions that may be chosen."""
        return [i for i in range(len(self.devices)) if i not in self.barred]

    def bit(self, position: int) -> int:
        """Return a position's bit."""
        return 1 << (len(self.devices) - 1 - position)

    def bits(self, positions: Iterable[int]) -> int:
        """Return a set of positions as one integer."""
        return sum(map(self.bit, positions))

    def positions(self, bits: int) -> tuple[int, ...]:
        """Return what `bits` made an integer of."""
        return tuple(i for i in range(len(self.devices)) if bits & self.bit(i))

    def ids(self, positions: Iterable[int]) -> tuple[str, ...]:
        """Return the devices' ids."""
        return tuple(self.devices[i].id for i in positions)

    @property
    def masks(self) -> list[int]:
        """The NUMA nodes of each device as a bit mask; 0: unknown."""
        return [sum(1 << node for node in device.numa_nodes) for device in self.devices]


@final
@attrs.frozen
class Found:
    """What a search has found.

    Attributes:
        positions: The chosen ones, ascending.
        proven: Whether nothing is better.
    """

    positions: tuple[int, ...]
    proven: bool = True


@final
@attrs.frozen
class Term:
    """One value of an objective, exact.

    Attributes:
        name: What it is; empty: it decides between equals and is not shown.
        value: Its value times ``scale``; None: it says nothing about sets of this size.
        larger_is_better: Its direction.
        scale: Makes whole numbers of weights.
    """

    name: str
    value: int | None
    larger_is_better: bool = False
    scale: int = 1

    @property
    def rank(self) -> int:
        """The value so that larger is better."""
        value = self.value or 0
        return value if self.larger_is_better else -value

    @property
    def shown(self) -> float | int | None:
        """The value for people and JSON."""
        if self.value is None or not self.value % self.scale:
            return self.value if self.value is None else self.value // self.scale
        return self.value / self.scale


def shown(terms: Iterable[Term]) -> Mapping[str, float | int | None]:
    """Return an objective's values by name, for people and JSON."""
    return MappingProxyType({term.name: term.shown for term in terms if term.name})


@final
@attrs.frozen(kw_only=True)
class Rival:
    """The best of all other sets.

    Attributes:
        chosen: Its ids, in natural order.
        objective: Its values; the first that differs from the choice's is why it is second.
    """

    chosen: tuple[str, ...]
    objective: Mapping[str, float | int | None]


@final
@attrs.frozen(kw_only=True)
class Choice:
    """Which devices, and why.

    Attributes:
        policy: The policy's name.
        chosen: The ids, in natural order.
        proven: Whether no other set is better; False: the search ended at its budget with the best that it had.
        objective: The objective's values by name, the most important first.
        runner_up: The best of all other sets; None: there is no other, or it was not asked for.
        milliseconds: How long the search took; the runner-up's is not counted.
    """

    policy: str
    chosen: tuple[str, ...]
    proven: bool
    objective: Mapping[str, float | int | None]
    runner_up: Rival | None = None
    milliseconds: float = 0.0
