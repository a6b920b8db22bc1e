"""What happened, in order: one frozen value for each thing that the kubelet saw or did.

The log is the test's witness and its story: assertions look for events, and a wait that does not come true prints
them all. Times are `time.monotonic` seconds, comparable between the processes of one machine.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "AllocateAnswered",
    "AllocateRequested",
    "DialFailed",
    "Dialed",
    "Disconnected",
    "Event",
    "EventLog",
    "KubeletStarted",
    "KubeletStopped",
    "ListReceived",
    "OptionsReceived",
    "PluginInfoReceived",
    "PluginNotified",
    "PluginSocketGone",
    "PluginSocketSeen",
    "PodAdmitted",
    "PodDeleted",
    "PodRejected",
    "PodResourcesAsked",
    "PodsConcerned",
    "PreStartAnswered",
    "PreStartRequested",
    "PreferredAnswered",
    "PreferredRequested",
    "RegisterAnswered",
    "RegisterReceived",
    "StreamEnded",
    "StreamOpened",
]


@attrs.frozen(kw_only=True)
class Event:
    """Something that happened.

    Attributes:
        time: When, in seconds of `time.monotonic`.
    """

    time: float = attrs.field(factory=time.monotonic)

    @property
    def name(self) -> str:
        """The event's name in JSON lines: ``register_received`` for `RegisterReceived`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def fields(self) -> dict[str, Any]:
        """Return everything but the time and bulky payloads, for printing."""
        return {
            field.name: getattr(self, field.name)
            for field in attrs.fields(type(self))
            if field.name != "time" and field.repr
        }


@attrs.frozen(kw_only=True)
class _PluginEvent(Event):
    """Something between the kubelet and the plugin at one socket."""

    resource: str
    socket_path: str


@attrs.frozen(kw_only=True)
class _DevicesEvent(Event):
    """A call about these devices of a resource."""

    resource: str
    device_ids: tuple[str, ...]


@attrs.frozen(kw_only=True)
class _DevicesAnswer(_DevicesEvent):
    """The answer to a call about devices, and the seconds that it took."""

    error: str | None
    seconds: float


@attrs.frozen(kw_only=True)
class KubeletStarted(Event):
    """The kubelet listens on kubelet.sock; the time is that of listen(2)."""

    profile: str


@attrs.frozen(kw_only=True)
class KubeletStopped(Event):
    """The kubelet is gone; ``how`` is ``stopped``, ``crashed`` or ``panicked``."""

    how: str


@attrs.frozen(kw_only=True)
class RegisterReceived(Event):
    """A plugin called Register."""

    resource: str
    endpoint: str
    version: str
    pre_start_required: bool
    preferred_allocation_available: bool


@attrs.frozen(kw_only=True)
class RegisterAnswered(Event):
    """Register was answered: ``error`` is None if the plugin was taken, else the text that it was sent."""

    resource: str
    endpoint: str
    error: str | None
    seconds: float


@attrs.frozen(kw_only=True)
class Dialed(_PluginEvent):
    """The kubelet has a connection to the plugin's socket."""


@attrs.frozen(kw_only=True)
class DialFailed(_PluginEvent):
    """The kubelet could not connect within its 10 seconds, or the Register call ended before."""

    error: str


@attrs.frozen(kw_only=True)
class OptionsReceived(_PluginEvent):
    """GetDevicePluginOptions was answered."""

    pre_start_required: bool
    preferred_allocation_available: bool


@attrs.frozen(kw_only=True)
class StreamOpened(_PluginEvent):
    """The kubelet called ListAndWatch."""


@attrs.frozen(kw_only=True)
class ListReceived(_PluginEvent):
    """A device list came; the time is that of its last byte.

    Attributes:
        healthy: Entries with health ``Healthy``.
        unhealthy: All other entries.
        size_bytes: The message's length.
        payload: The message as it came.
    """

    healthy: int
    unhealthy: int
    size_bytes: int
    payload: bytes = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class StreamEnded(_PluginEvent):
    """ListAndWatch ended: ``code`` is the gRPC name of the status, ``OK`` for a clean end of the stream."""

    code: str
    detail: str


@attrs.frozen(kw_only=True)
class Disconnected(_PluginEvent):
    """The kubelet closed its connection to a plugin and took note of its end."""


@attrs.frozen(kw_only=True)
class PreferredRequested(Event):
    """The kubelet called GetPreferredAllocation."""

    resource: str
    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


@attrs.frozen(kw_only=True)
class PreferredAnswered(_DevicesAnswer):
    """GetPreferredAllocation was answered."""


@attrs.frozen(kw_only=True)
class AllocateRequested(_DevicesEvent):
    """The kubelet called Allocate, in the order in which it sent the ids."""


@attrs.frozen(kw_only=True)
class AllocateAnswered(_DevicesAnswer):
    """Allocate was answered."""


@attrs.frozen(kw_only=True)
class PreStartRequested(_DevicesEvent):
    """The kubelet called PreStartContainer."""


@attrs.frozen(kw_only=True)
class PreStartAnswered(_DevicesAnswer):
    """PreStartContainer was answered."""


@attrs.frozen(kw_only=True)
class PodAdmitted(Event):
    """A pod was admitted."""

    pod: str
    devices: dict[str, dict[str, tuple[str, ...]]]


@attrs.frozen(kw_only=True)
class PodRejected(Event):
    """A pod was refused."""

    pod: str
    reason: str
    message: str


@attrs.frozen(kw_only=True)
class PodDeleted(Event):
    """A pod is gone; its devices are free at the kubelet's next look."""

    pod: str


@attrs.frozen(kw_only=True)
class PluginSocketSeen(Event):
    """The plugin watcher saw a socket appear."""

    socket_path: str


@attrs.frozen(kw_only=True)
class PluginSocketGone(Event):
    """The plugin watcher saw a socket removed."""

    socket_path: str


@attrs.frozen(kw_only=True)
class PluginInfoReceived(Event):
    """GetInfo was answered; ``error`` says why not, or why what it said was refused."""

    socket_path: str
    plugin_type: str
    resource: str
    endpoint: str
    versions: tuple[str, ...]
    error: str | None


@attrs.frozen(kw_only=True)
class PodResourcesAsked(Event):
    """Somebody called the pod-resources API; ``error`` is the refusal's text."""

    method: str
    error: str | None


@attrs.frozen(kw_only=True)
class PodsConcerned(Event):
    """A device list changed the health of devices that these pods hold: their status is written again (1.36, 1.37)."""

    resource: str
    uids: tuple[str, ...]


@attrs.frozen(kw_only=True)
class PluginNotified(Event):
    """NotifyRegistrationStatus was sent; ``failure`` says why it did not arrive."""

    socket_path: str
    registered: bool
    error: str
    failure: str | None


_E = TypeVar("_E", bound=Event)


class EventLog:
    """The events in their order, and a way to wait for the next change.

    Not thread-safe: everything happens in one event loop.
    """

    def __init__(self, listener: Callable[[Event], None] | None = None) -> None:
        self._events: list[Event] = []
        self._changed = anyio.Event()
        self._listener = listener

    def add(self, event: Event) -> None:
        """Append an event, tell the listener, and wake all waiting callers."""
        self._events.append(event)
        if self._listener is not None:
            self._listener(event)
        self.touch()

    def touch(self) -> None:
        """Wake all waiting callers, after a change that is no event of its own."""
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def change(self) -> None:
        """Wait until something happens after this call. Cancellable."""
        await self._changed.wait()

    def of(self, kind: type[_E], *, resource: str | None = None) -> list[_E]:
        """Return the events of one kind in their order, those of one resource if it is given."""
        return [
            event
            for event in self._events
            if isinstance(event, kind) and (resource is None or getattr(event, "resource", None) == resource)
        ]

    def __iter__(self) -> Iterator[Event]:
        """Go through the events in their order."""
        return iter(tuple(self._events))

    def __len__(self) -> int:
        """Return how many events there are."""
        return len(self._events)

    def __getitem__(self, index: int) -> Event:
        """Return one event; negative counts from the newest."""
        return self._events[index]

    def story(self, last: int = 200) -> str:
        """Return the events as text, one a line, with seconds since the first."""
        if not self._events:
            return "  (nothing happened)"
        start = self._events[0].time
        lines = [
            f"  {event.time - start:+9.4f} s  {event.name}"
            + "".join(f" {key}={value!r}" for key, value in event.fields().items())
            for event in self._events[-last:]
        ]
        if len(self._events) > last:
            lines.insert(0, f"  … {len(self._events) - last} events before")
        return "\n".join(lines)
