"""When to serve, when to register, when to begin anew: the life of one resource's socket. Sans-IO.

Events go in with the time (`Session.handle`), commands come out; `Session.deadline` says when to send `Tick`. A
*generation* is one gRPC server on one socket with a name of its own.

::

    WAITING ──Serve──► SERVING ──Register──► REGISTERING ──► AWAITING_STREAM ──► CONNECTED
       ▲                  │                      │                  │                │
       │                  ▼                      ▼                  ▼                ▼
       └────Closed───── LOST ◄───────────────────┴──────────────────┴────────────────┘      Stop: ──► STOPPED

Invariants, each with a mutant in the tests that breaks it:

1. Never `Register` while a stream lives, of whatever generation (contract section 2.5).
2. Never the same generation twice: not in `Serve`, not in `Register`. A path in the kubelet's hands may be poisoned,
   also by a failed or unanswered Register (contract section 2.5), so every new try is a new name.
3. An open stream is the only proof of registration: CONNECTED if and only if the current generation has one.
4. At most one generation is served at a time; a new one only after the one before is `Closed`.
5. While not connected and not stopped there is always a next step: a command under way, a deadline, or a missing
   thing (a list, a kubelet) whose arrival is an event.
6. A new kubelet is answered at once: its arrival ends every pause. An answer that it may have crossed, and that may be
   its predecessor's, is believed for `CROSSED_DEADLINE` only.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, final

import attrs

from ..startup import shown

if TYPE_CHECKING:
    from ..concurrency.backoff import Backoff

STREAM_DEADLINE = 10.0
"""Seconds from a Register that was answered to the ListAndWatch stream (contract section 12, B6)."""

CROSSED_DEADLINE = 1.0
"""The same if another kubelet has come while Register was under way: nobody knows which of the two has answered."""

WATCHER_STREAM_DEADLINE = 15.0
"""The same for the plugin watcher, from its first call (contract section 12, B20)."""

UNNOTICED_DEADLINE = 60.0
"""Seconds after which a socket in the plugin watcher's directory that nobody has called is made anew (fault 71)."""

STABLE_SECONDS = 10.0
"""A stream that lived so long proves that all is well: the next loss is answered without a pause."""

REFUSED_PAUSE = 60.0
"""Seconds between two tries after a refusal that waiting does not cure (contract section 2.2, class "permanent")."""


class State(enum.Enum):
    """Where a resource's session is."""

    WAITING = "waiting"
    SERVING = "serving"
    REGISTERING = "registering"
    AWAITING_STREAM = "awaiting stream"
    CONNECTED = "connected"
    LOST = "lost"
    STOPPED = "stopped"


@attrs.frozen
class _OfGeneration:
    """What concerns one generation. Subclasses differ in their meaning only; attrs never takes two kinds for equal."""

    __repr__ = shown

    generation: int


@attrs.frozen
class _Plain:
    """What concerns the session as a whole and carries nothing."""

    __repr__ = shown


class Serve(_OfGeneration):
    """Start a server on a fresh socket; answer with `Served` or `ServeFailed`."""


class Register(_OfGeneration):
    """Tell the kubelet; answer with `Registered` or `RegisterFailed`."""


class Close(_OfGeneration):
    """End the server and all its streams; answer with `Closed`."""


Command = Serve | Register | Close


class GenerationAnswer(_OfGeneration):
    """What a generation says of itself."""


class ListReady(_Plain):
    """The inventory has a list that may be sent; without one nothing is served."""


@attrs.frozen
class KubeletHere:
    """A kubelet takes registrations. ``identity`` differs between two starts of the kubelet."""

    __repr__ = shown

    identity: object


class KubeletGone(_Plain):
    """No kubelet takes registrations."""


class Served(GenerationAnswer):
    """The generation's socket answers."""


@attrs.frozen
class ServeFailed(GenerationAnswer):
    """The socket could not be made (directory missing, read-only, full, name too long)."""

    __repr__ = shown

    reason: str


class Contacted(GenerationAnswer):
    """The plugin watcher has called the generation's socket."""


class Registered(GenerationAnswer):
    """The kubelet said yes."""


@attrs.frozen
class RegisterFailed(GenerationAnswer):
    """The kubelet said no, or could not be asked. ``permanent``: waiting does not help."""

    __repr__ = shown

    reason: str
    permanent: bool = False


class StreamOpened(GenerationAnswer):
    """The kubelet has opened a ListAndWatch stream."""


class StreamClosed(GenerationAnswer):
    """A ListAndWatch stream has ended."""


@attrs.frozen
class DriftDetected(GenerationAnswer):
    """The kubelet has the stream, but not the list that it carried: only a new registration helps."""

    __repr__ = shown

    reason: str


class Closed(GenerationAnswer):
    """The generation's server is gone, and all its streams."""


class Tick(_Plain):
    """Time has passed: `Session.deadline` is over."""


class Stop(_Plain):
    """End for good: the current generation is closed, nothing new begins."""


Event = ListReady | KubeletHere | KubeletGone | Tick | Stop | GenerationAnswer


@final
class Session:
    """The generation state machine of one resource.

    Args:
        backoff: The pauses between tries.
        watcher: Whether the plugin watcher's route is taken: then nobody needs to be there when the socket is put
            into its directory, and `Register` means "make the socket visible".

    Attributes:
        state: Where it is.
        generation: The current generation; 0 before the first.
        streams: How many ListAndWatch streams of the current generation live.
        reason: Why it is not connected; None while all goes as it should.
        deadline: When to send `Tick`; None: only an event can change anything.
    """

    def __init__(self, *, backoff: Backoff, watcher: bool = False) -> None:
        self._backoff = backoff
        self._watcher = watcher
        self._list_ready = False
        self._kubelet: object | None = None
        self._tried_with: object | None = None
        self._contacted = False
        self._connected_at = 0.0
        self._stopping = False
        self.deadline: float | None = None
        self.state = State.WAITING
        self.generation = 0
        self.streams = 0
        self.reason: str | None = None

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event and return what is to be done, in order.

        Events of a generation that is not the current one are late and change nothing.
        """
        match event:
            case ListReady():
                self._list_ready = True
            case KubeletHere(identity):
                if identity != self._kubelet:
                    self._kubelet = identity
                    return self._on_new_kubelet(now)
            case KubeletGone():
                self._kubelet = None
            case Stop():
                return self._on_stop()
            case Tick():
                if self.deadline is None or now < self.deadline:
                    return []
                return self._on_deadline(now)
            case _:
                return self._on_answer(event, now) if event.generation == self.generation else []
        return self._advance(now)

    def _on_answer(self, event: GenerationAnswer, now: float) -> list[Command]:
        match self.state, event:
            case ((State.SERVING | State.REGISTERING | State.AWAITING_STREAM | State.CONNECTED), StreamOpened()):
                self.streams += 1
                if self.state is not State.CONNECTED:
                    self._connected_at = now
                    self._enter(State.CONNECTED)
                self.reason = None
            case State.CONNECTED, StreamClosed():
                self.streams -= 1
                if not self.streams:
                    return self._on_stream_lost(now)
            case State.CONNECTED, DriftDetected(reason=reason):
                return self._lose(reason, now, pause=0.0)
            case State.SERVING, Served():
                self._enter(State.REGISTERING, deadline=now + UNNOTICED_DEADLINE if self._watcher else None)
                self._tried_with = self._kubelet
                self._contacted = False
                return [Register(self.generation)]
            case State.SERVING, ServeFailed(reason=reason):
                return self._lose(reason, now, pause=self._backoff.next())
            case State.REGISTERING, Contacted() if self._watcher and not self._contacted:
                self._contacted = True
                self.deadline = now + WATCHER_STREAM_DEADLINE
            case State.REGISTERING, Registered():
                crossed = self._kubelet != self._tried_with
                self._enter(State.AWAITING_STREAM, deadline=now + (CROSSED_DEADLINE if crossed else STREAM_DEADLINE))
            case (
                (State.REGISTERING | State.AWAITING_STREAM),
                RegisterFailed(reason=reason, permanent=permanent),
            ):
                return self._lose(reason, now, pause=REFUSED_PAUSE if permanent else self._backoff.next())
            case State.LOST, Closed():
                self._enter(State.WAITING, deadline=self.deadline)
                return self._advance(now)
            case _:
                pass  # an answer that came too late for its question
        return []

    def _on_stream_lost(self, now: float) -> list[Command]:
        is_stable = now - self._connected_at >= STABLE_SECONDS
        if is_stable:
            self._backoff.reset()
        return self._lose("the kubelet has ended its stream", now, pause=0.0 if is_stable else self._backoff.next())

    def _on_new_kubelet(self, now: float) -> list[Command]:
        self._backoff.reset()
        if self.state in (State.WAITING, State.LOST):
            self.deadline = None
        elif self.state is State.AWAITING_STREAM:
            return self._lose("the kubelet was restarted", now, pause=0.0)
        return self._advance(now)

    def _on_deadline(self, now: float) -> list[Command]:
        self.deadline = None
        if self.state is State.AWAITING_STREAM or self.state is State.REGISTERING:
            reason = "registered, but the kubelet opened no stream in time"
            if self.state is State.REGISTERING and self._watcher:
                reason = "the kubelet has not picked up the socket from its plugin directory"
            return self._lose(reason, now, pause=self._backoff.next())
        return self._advance(now)

    def _on_stop(self) -> list[Command]:
        if self._stopping:
            return []
        self._stopping = True
        was = self.state
        self._enter(State.STOPPED)
        # In WAITING nothing is served; in LOST the Close is already under way.
        return [] if was in (State.WAITING, State.LOST) else [Close(self.generation)]

    def _lose(self, reason: str, now: float, *, pause: float) -> list[Command]:
        self.reason = reason
        if self._kubelet != self._tried_with:  # it failed with a kubelet that is gone: the new one must not wait
            pause = 0.0
        self._enter(State.LOST, deadline=now + pause if pause > 0 else None)
        return [Close(self.generation)]

    def _advance(self, now: float) -> list[Command]:
        if self.state is not State.WAITING or (self.deadline is not None and now < self.deadline):
            return []
        if not self._list_ready or (self._kubelet is None and not self._watcher):
            return []
        self.generation += 1
        self.streams = 0
        self._tried_with = self._kubelet
        self._enter(State.SERVING)
        return [Serve(self.generation)]

    def _enter(self, state: State, *, deadline: float | None = None) -> None:
        self.state = state
        self.deadline = deadline
