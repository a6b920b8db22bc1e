"""The policies by their names, and the questions: which devices (`choose`), why these (`explain`), and `Preferences`.

All are pure: the same question has the same answer, in whatever order the devices come. The exception is a search that
ends at its budget, which the answer says (``proven=False``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, final

import attrs

from ..errors import InvalidValueError
from ..model.backend import is_overridden
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
    from collections.abc import Sequence

    from ..model.backend import DeviceBackend, PreferRequest
    from ..model.devices import Device

logger = logging.getLogger(__name__)

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
        raise InvalidValueError(f"policy {name!r}: must be one of {', '.join(POLICIES)}; for example 'linked'")
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
        rival = policy.search(attrs.evolve(problem, barred=frozenset({position})), topology, time.monotonic() + budget)
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


@final
@attrs.define
class Preferences:
    """What a plugin answers when the kubelet asks which devices of one backend to prefer.

    Attributes:
        policy: The policy in force, see `policy_in_force`.
        topology: The links between units, when they are known.
    """

    policy: Policy
    topology: Topology = attrs.field(factory=lambda: Topology((), {}))

    def answer(self, request: PreferRequest) -> Sequence[str]:
        """Return the ids to prefer.

        Takes what `BUDGET` says and no I/O, so it may be called in an event loop.

        Raises:
            InvalidValueError: The request has no answer, as a size of 0.
        """
        problem = Problem.of(request.available, [device.id for device in request.must_include], request.size)
        found = self.policy.search(problem, self.topology, time.monotonic() + BUDGET)
        if not found.proven:
            logger.info(
                "%s: preferred %d of %d devices without proof that they are the best: the search ended after %g ms",
                request.resource,
                request.size,
                len(problem.devices),
                1000 * BUDGET,
                extra={"resource": request.resource},
            )
        return problem.ids(found.positions)


def policy_in_force(backend: DeviceBackend, policy: str | None = None) -> Policy | None:
    """Return the policy in force: the admin's, else the backend's, else ``linked`` if it says links, else none.

    Raises:
        InvalidValueError: There is no such policy.
    """
    name = policy or backend.policy or ("linked" if is_overridden(backend, "links") else None)
    chosen = None if name is None or name == "none" else check_policy(name)
    placement: str | None = getattr(backend, "placement", None)  # of a shared backend
    if placement is None:
        return chosen
    return (chosen or POLICIES["first"]).over_units() if placement == "distinct" else POLICIES[placement]
