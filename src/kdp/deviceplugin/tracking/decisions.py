"""Values that tracking returns: what its manager is to do with the resources after the kubelet was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import attrs

from ...startup import shown
from .allocation_record import AllocationRecord


@final
@attrs.frozen(kw_only=True)
class Reregistration:
    """One resource needs a new generation, because the kubelet's view of it stays wrong.

    Attributes:
        generation: The generation whose list the kubelet does not have.
        reason: The difference, for the log.
    """

    __repr__ = shown

    resource: str
    generation: int
    reason: str


@final
@attrs.frozen(kw_only=True)
class Decisions:
    """What follows from one round of questions.

    Attributes:
        held: Vanished devices that pods hold, by resource: keep them listed.
        gone: Vanished devices that no pod holds, by resource: drop them.
        unlisted: Devices that pods hold and that were never listed, by resource, each with its NUMA nodes: list them as
            vanished.
        ended: Allocations that pods have given back: release each.
        reregistrations: Resources that need a new generation.
    """

    __repr__ = shown

    held: Mapping[str, Sequence[str]] = attrs.field(factory=dict[str, "Sequence[str]"])
    gone: Mapping[str, Sequence[str]] = attrs.field(factory=dict[str, "Sequence[str]"])
    unlisted: Mapping[str, Mapping[str, Sequence[int]]] = attrs.field(factory=dict[str, "Mapping[str, Sequence[int]]"])
    ended: Sequence[AllocationRecord] = ()
    reregistrations: Sequence[Reregistration] = ()
