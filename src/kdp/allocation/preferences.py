"""`Preferences`: what a plugin answers when the kubelet asks which devices to prefer. Sans-IO.

It holds what one backend's policy needs (the links, when they are known) and remembers answers: the kubelet asks the
same again while pods wait. It never raises for what a kubelet may ask; an empty answer lets the kubelet choose itself.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from ..model.backend import is_overridden
from .policies import BUDGET, POLICIES, Policy, check_policy
from .problem import Problem
from .topology import Topology

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from ..model.backend import DeviceBackend, PreferRequest

logger = logging.getLogger(__name__)

_REMEMBERED = 256
"""Answers that are kept; all are dropped when there are more."""

_Question = tuple[frozenset[tuple[str, str, tuple[int, ...]]], frozenset[str], int]


class Preferences:
    """Answers for one backend.

    Args:
        policy: The policy in force, see `policy_in_force`.
        counts: Counts the answers (``answered``), and of those what came from memory (``remembered``) and what is not
            proven to be the best (``unproven``).
    """

    def __init__(self, policy: Policy, counts: Counter[str]) -> None:
        self._policy = policy
        self._counts = counts
        self._topology = Topology((), {})
        self._known: dict[_Question, tuple[str, ...]] = {}

    @property
    def topology(self) -> Topology:
        """The links between units."""
        return self._topology

    @topology.setter
    def topology(self, topology: Topology) -> None:
        self._topology = topology
        self._known.clear()

    def answer(self, request: PreferRequest) -> Sequence[str]:
        """Return the ids to prefer.

        Takes what `BUDGET` says and no I/O, so it may be called in an event loop.

        Raises:
            InvalidValueError: The request has no answer, as a size of 0.
        """
        question: _Question = (
            frozenset((d.id, d.unit, d.numa_nodes) for d in request.available),
            frozenset(d.id for d in request.must_include),
            request.size,
        )
        known = self._known.get(question)
        self._counts["answered"] += 1
        if known is not None:
            self._counts["remembered"] += 1
            return known
        problem = Problem.of(request.available, question[1], request.size)
        found = self._policy.search(problem, self._topology, time.monotonic() + BUDGET)
        if not found.proven:
            self._counts["unproven"] += 1
            logger.info(
                "%s: preferred %d of %d devices without proof that they are the best: the search ended after %g ms",
                request.resource,
                request.size,
                len(problem.devices),
                1000 * BUDGET,
                extra={"resource": request.resource},
            )
        ids = problem.ids(found.positions)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[question] = ids
        return ids


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
