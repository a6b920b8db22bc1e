"""`History`: the last events of a process, in bounded memory whatever happens and however often.

Rooms that do something add to it, and the status document has a copy. A process without a socket has no history,
because no command can ask for it. Use one from one loop.

* An event like one of the last `LOOK_BACK` is counted there and moves to the end, so that one pod that fails again and
  again leaves the others their places.
* Texts have at most `LONGEST` characters that print, and `MOST_DEVICES` devices are named.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, final

import attrs

from ..errors import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_EVENTS: Final = 200

LOOK_BACK: Final = 16

LONGEST: Final = 512

MOST_DEVICES: Final = 16

Kind = Literal[
    "started",
    "reloaded",
    "rejected",
    "registered",
    "disconnected",
    "kubelet restarted",
    "fault",
    "recovered",
    "gone",
    "allocated",
    "refused",
    "held",
    "released",
    "prepared",
    "unprepared",
    "failed",
]
"""What happened: to the process, its configuration, its connection to the kubelet, devices, containers, or claims."""


@final
@attrs.frozen(kw_only=True)
class Event:
    """Something that happened.

    Attributes:
        at: When, in Unix seconds; of an event that was counted, the last time.
        kind: What happened, in a word.
        subject: To what, as a resource's or driver's name; "": to the process.
        text: More of it, as a sentence's end.
        devices: The first of its devices.
        more: How many further devices it had.
        count: How often it happened.
    """

    at: float
    kind: Kind
    subject: str = ""
    text: str = ""
    devices: tuple[str, ...] = ()
    more: int = 0
    count: int = 1

    def is_like(self, other: Event) -> bool:
        """Return whether both say the same, of different times."""
        return attrs.evolve(self, at=other.at, count=other.count) == other


@final
class History:
    """The last `MOST_EVENTS` events; the oldest comes first."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)

    def add(self, kind: Kind, subject: str = "", text: str = "", devices: Sequence[str] = ()) -> None:
        """Add what has just happened."""
        event = Event(
            at=time.time(),
            kind=kind,
            subject=printable(subject, LONGEST),
            text=printable(text, LONGEST),
            devices=tuple(printable(each, LONGEST) for each in devices[:MOST_DEVICES]),
            more=max(0, len(devices) - MOST_DEVICES),
        )
        same = next((each for each in islice(reversed(self._events), LOOK_BACK) if each.is_like(event)), None)
        if same is not None:
            self._events.remove(same)
            event = attrs.evolve(event, count=same.count + 1)
        self._events.append(event)

    @property
    def events(self) -> tuple[Event, ...]:
        """A copy."""
        return tuple(self._events)
