"""The policies by their names, and the two questions: which devices (`choose`), and why these (`explain`).

Both are pure: the same question has the same answer, in whatever order the devices come. The exception is a search that
ends at its budget, which the answer says (``proven=False``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, final

import attrs

from ..errors import InvalidValueError
from .counting import (
    distinct,
    distinct_terms,
    first,
    first_terms,
    numa,
    numa_terms,
    packed,
    packed_terms,
    spread,
    spread_terms,
)
from .linked import linked, linked_terms
from .problem import Choice, Found, Problem, Rival, Term, shown
from .topology import Topology

if TYPE_CHECKING:
    from ..model.devices import Device

BUDGET = 0.02
"""Seconds that a search may take where it cannot be exact at once: pod admission waits for it."""


@final
@attrs.frozen
class Policy:
    """How to choose.

    Attributes:
        name: Its name.
        search: Finds the best set, given a deadline on `time.monotonic`'s clock.
        terms: The objective's values for a set, the most important first; after them counts the natural order of ids.
    """

    name: str
    search: Callable[[Problem, Topology, float], Found] = attrs.field(repr=False)
    terms: Callable[[Problem, Topology, Collection[int]], tuple[Term, ...]] = attrs.field(repr=False)

    def over_units(self) -> Policy:
        """Return the policy that takes different units as far as possible, and lets this one choose among them."""
        return Policy(f"distinct-{self.name}", distinct(self.search), distinct_terms(self.terms))


POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("first", first, first_terms),
        Policy("packed", packed, packed_terms),
        Policy("spread", spread, spread_terms),
        Policy("numa", numa, numa_terms),
        Policy("linked", linked, linked_terms),
    )
}
"""What ``DeviceBackend.policy`` and ``--policy`` may name."""


def check_policy(name: str) -> Policy:
    """Return the policy of this name.

    Raises:
        InvalidValueError: There is none.
    """
    if name not in POLICIES:
        raise InvalidValueError(f"policy {name!r}: must be one of {', '.join(POLICIES)}; valid is 'linked'")
    return POLICIES[name]


def choose(
    policy: str | Policy,
    available: Iterable[Device],
    size: int,
    *,
    must_include: Iterable[str] = (),
    topology: Topology | None = None,
    budget: float = BUDGET,
) -> Choice:
    """Choose devices. Never blocks, and takes no longer than the budget and what it costs to write the answer down.

    Args:
        policy: A name out of `POLICIES`.
        available: The free devices, those of ``must_include`` among them.
        size: How many in all.
        must_include: Ids that have to be among them.
        topology: The links, for ``linked``; None: there are none.
        budget: Seconds for a search that cannot be exact at once.

    Raises:
        InvalidValueError: There is no such policy, the size is 0 or more than is available, or ``must_include`` names
            what is not available or more than the size.
    """
    policy = check_policy(policy) if isinstance(policy, str) else policy
    problem = Problem.of(available, must_include, size)
    return _answer(policy, problem, topology or Topology((), {}), budget)[0]


def explain(
    policy: str | Policy,
    available: Iterable[Device],
    size: int,
    *,
    must_include: Iterable[str] = (),
    topology: Topology | None = None,
    budget: float = BUDGET,
) -> Choice:
    """Choose as `choose` does, and find the runner-up: which set would be the best without this one.

    Takes as many searches as devices are chosen. Arguments and errors are those of `choose`.
    """
    policy = check_policy(policy) if isinstance(policy, str) else policy
    problem = Problem.of(available, must_include, size)
    topology = topology or Topology((), {})
    choice, found = _answer(policy, problem, topology, budget)
    # Any other set of this size lacks at least one of the chosen, so the best of all others is the best of these.
    best: tuple[tuple[object, ...], Found, tuple[Term, ...]] | None = None
    for position in found.positions:
        if position in problem.must or len(problem.devices) == problem.size:
            continue
        rival = policy.search(problem.without(position), topology, time.monotonic() + budget)
        terms = policy.terms(problem, topology, rival.positions)
        rank = (*(term.rank for term in terms), problem.bits(rival.positions))
        if best is None or rank > best[0]:
            best = rank, rival, terms
    if best is None:
        return choice
    return attrs.evolve(choice, runner_up=Rival(chosen=problem.ids(best[1].positions), objective=shown(best[2])))


def _answer(policy: Policy, problem: Problem, topology: Topology, budget: float) -> tuple[Choice, Found]:
    begun = time.monotonic()
    found = policy.search(problem, topology, begun + budget)
    took = time.monotonic() - begun
    choice = Choice(
        policy=policy.name,
        chosen=problem.ids(found.positions),
        proven=found.proven,
        objective=shown(policy.terms(problem, topology, found.positions)),
        milliseconds=round(1000 * took, 3),
    )
    return choice, found
