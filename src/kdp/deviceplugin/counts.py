"""`PluginCounts`: what device plugins count of their registrations, lists, and calls. Sans-IO."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

import attrs

from ..concurrency.counts import Durations, Tally
from ..kubelet.calls import CallCounts
from ..startup import shown
from .session import Register, RegisterFailed, Serve, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .session import Command, Event

RESULTS = ("accepted", "refused", "failed", "no_stream")
"""How a registration ended: the kubelet said yes; it said no for good; anything else; it said yes, but opened no
stream."""


@final
@attrs.frozen
class SentList:
    """The list that a kubelet was sent last.

    Attributes:
        size: Its bytes.
        sent_at: When, in Unix seconds.
    """

    __repr__ = shown

    size: int
    sent_at: float


@final
class PluginCounts(CallCounts):
    """The counts of all resources of a process; the options hand them down, also to the next manager after a reload.

    Attributes:
        registrations: By resource and result, which is one of `RESULTS`.
        registering: Seconds from Register to the stream that proves it, by resource.
        updates: Lists that were sent, by resource.
        lists: The last list of each resource.
    """

    def __init__(self) -> None:
        super().__init__()
        self.registrations = Tally()
        self.registering = Durations()
        self.updates = Tally()
        self.lists: dict[str, SentList] = {}
        self._began: dict[str, float] = {}

    def sent(self, resource: str, size: int) -> None:
        """Count a list that was written to a stream."""
        name = self.resources.of(resource)
        self.updates.add(name)
        self.lists[name] = SentList(size, time.time())

    def handled(self, resource: str, event: Event, commands: Sequence[Command], before: State, after: State) -> None:
        """Count what a session made of an event."""
        name = self.resources.of(resource)
        for command in commands:
            if isinstance(command, Register):
                self._began[name] = time.monotonic()
            elif isinstance(command, Serve):
                self._began.pop(name, None)
        waited = before in (State.REGISTERING, State.AWAITING_STREAM)
        if before is after or not waited:
            return
        if after is State.CONNECTED and (began := self._began.pop(name, None)) is not None:
            self.registering.add(name, seconds=time.monotonic() - began)
        if before is State.REGISTERING and after in (State.AWAITING_STREAM, State.CONNECTED):
            self.registrations.add(name, "accepted")  # a stream proves it also where it comes before the answer
        elif isinstance(event, RegisterFailed):
            self.registrations.add(name, "refused" if event.permanent else "failed")
        elif after is State.LOST:
            self.registrations.add(name, "no_stream")
