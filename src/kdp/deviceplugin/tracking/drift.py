"""Detects that the kubelet has another view of a resource than we sent. Sans-IO.

A stream that lives proves that the kubelet listens, not that it has what was sent: up to 1.36 a second instance that
registers and leaves again makes the kubelet close its books on the resource while our stream lives on, and the node
shows no devices from then on. Only GetAllocatableResources tells (contract section 10).

Rule: an id counts as wrong only if each look of the last `Pace.lasting` seconds found it wrong, in the same direction
and in one generation. What a new generation does not cure is answered more and more seldom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from ...startup import shown

if TYPE_CHECKING:
    from ..options import Pace

MOST = 960.0
"""The longest that it is waited after generations that did not help, in seconds."""


def _some(ids: frozenset[str]) -> str:
    first = min(ids)
    return f"device {first}" if len(ids) == 1 else f"{len(ids)} devices ({first}, ...)"


@final
@attrs.frozen
class ResourceView:
    """How the kubelet sees a resource, as of the last comparison.

    Attributes:
        disagrees: Whether it takes other devices for healthy than it was sent as healthy.
        foreign: How many devices it has that are not ours.
        missing: Healthy devices that it does not take for healthy.
        phantom: Devices that it takes for healthy, and that are not.
        compared_at: When that was, on `time.monotonic`'s clock.
        since: Since when it has disagreed; None: it agrees.
    """

    __repr__ = shown

    disagrees: bool
    foreign: int
    missing: frozenset[str] = attrs.field(default=frozenset(), eq=False)
    phantom: frozenset[str] = attrs.field(default=frozenset(), eq=False)
    compared_at: float = attrs.field(default=0.0, eq=False)
    since: float | None = attrs.field(default=None, eq=False)


class DriftDetector:
    """The kubelet's view of one resource.

    Attributes:
        next_look: When to compare; None: not while no generation is connected.
        view: What the last comparison found, in whichever generation; None: there was none.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._missing: frozenset[str] = frozenset()
        self._phantom: frozenset[str] = frozenset()
        self._since = 0.0
        self._cures = 0
        self.next_look: float | None = None
        self.view: ResourceView | None = None

    def connected(self, now: float) -> None:
        """A generation is connected: look soon."""
        self._missing = self._phantom = frozenset()
        self.next_look = now + self._pace.after_connect

    def lost(self) -> None:
        """No generation is connected: there is nothing to compare."""
        self._missing = self._phantom = frozenset()
        self.next_look = None

    def postpone(self, now: float, *, is_outdated: bool = False) -> None:
        """The kubelet could not be asked, or what was found is outdated and the next look is sooner."""
        if self.next_look is not None:
            self.next_look = now + (self._pace.again if is_outdated else self._pace.period)

    def ask_again(self, now: float) -> None:
        """The kubelet took the question and did not answer: whether it hangs is to be known soon."""
        if self.next_look is not None:
            self.next_look = now + self._pace.between

    def compare(self, sent: frozenset[str], accepted: frozenset[str], now: float, *, foreign: int = 0) -> str | None:
        """Compare the ids sent as healthy with those that the kubelet takes for healthy, some of which are not ours.

        Returns a difference that has lasted and is to be cured by a new generation, as a sentence.
        """
        missing, phantom = sent - accepted, accepted - sent
        disagrees, before = bool(missing or phantom), self.view
        since = now if before is None or before.since is None else before.since
        self.view = ResourceView(
            disagrees, foreign, missing=missing, phantom=phantom, compared_at=now, since=since if disagrees else None
        )
        if not missing and not phantom:
            self._cures = 0
        began_before = bool(self._missing & missing or self._phantom & phantom)
        if began_before:
            self._missing, self._phantom = self._missing & missing, self._phantom & phantom
        else:
            self._missing, self._phantom, self._since = missing, phantom, now
        if not self._missing and not self._phantom:
            self.next_look = now + self._pace.period
            return None
        self.next_look = now + self._pace.again
        lasted = now - self._since
        if lasted < min(MOST, self._pace.lasting * 2.0**self._cures):
            return None
        self._cures += 1
        parts = [f"treats {_some(self._missing)} as unhealthy or absent"] if self._missing else []
        parts += [f"treats {_some(self._phantom)} as healthy"] if self._phantom else []
        self.lost()
        return f"the kubelet {' and '.join(parts)} although kdp reported otherwise, for {lasted:.0f} s"
