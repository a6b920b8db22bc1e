"""What a `Planner` says: the next thing to ask of the API server, and where its pool stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import attrs

from .feature_gates import DroppedField

MOMENT: Final = 5.0
"""Seconds for which slices may differ from the wanted ones: a kubelet that starts deletes them, and they come again."""


@final
@attrs.frozen
class ReadVersion:
    """Ask for the server's version."""


@final
@attrs.frozen
class ReadOwner:
    """Ask for the node that owns the slices."""

    node: str


@final
@attrs.frozen
class ReadSlices:
    """List the slices."""


@final
@attrs.frozen
class Watch:
    """Begin to watch the slices from a resource version on; there is no other watch then."""

    resource_version: str


@final
@attrs.frozen(eq=False)
class Create:
    """Create a slice."""

    item: Mapping[str, Any]


@final
@attrs.frozen(eq=False)
class Update:
    """Replace a slice."""

    item: Mapping[str, Any]


@final
@attrs.frozen(eq=False)
class Delete:
    """Delete a slice."""

    item: Mapping[str, Any]


@final
@attrs.frozen(eq=False)
class Check:
    """Have the server judge a write without doing it."""

    write: Create | Update


@final
@attrs.frozen
class Wait:
    """Do nothing until something happens, or until a time; None: for ever."""

    until: float | None


Write = Create | Update | Delete
Action = ReadVersion | ReadOwner | ReadSlices | Watch | Check | Write | Wait


@final
@attrs.frozen(kw_only=True)
class PublisherStatus:
    """What the API server has of a pool.

    Attributes:
        generation: The pool's newest generation that is whole; 0: nothing is published yet.
        slices: How many slices that one has.
        devices: How many devices they have.
        is_current: Whether it is what was published last, or as much of it as this server can hold.
        problem: Why it is not, as a sentence; None: nothing is known to be wrong.
        withheld: The ids of devices that are not published, each with the feature gate that the server lacks.
        dropped: Fields that the server left out, one of each gate.
        stored: How many slices of the pool the server had when it was heard last; None: nobody counts them.
        behind_since: When it ceased to be current, on `time.monotonic`'s clock; None: it is. Not compared.
    """

    generation: int = 0
    slices: int = 0
    devices: int = 0
    is_current: bool = False
    problem: str | None = None
    withheld: Mapping[str, str] = attrs.field(factory=dict[str, str])
    dropped: tuple[DroppedField, ...] = ()
    stored: int | None = None
    behind_since: float | None = attrs.field(default=None, eq=False)

    @property
    def is_missing(self) -> bool:
        """Whether a pool that was published has no slice any more."""
        return self.generation > 0 and self.slices > 0 and self.stored == 0

    def is_behind(self, now: float) -> bool:
        """Return whether the server's slices have differed from the wanted ones for longer than a moment."""
        return self.behind_since is not None and now - self.behind_since > MOMENT
