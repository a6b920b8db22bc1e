"""`ArmedFaults`: what is to go wrong with what comes next. `faults` fills it, the kubelet's process asks it.

It commands nobody. A fault that has met its last call, socket, or connection is gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import anyio
import attrs
from typing_extensions import override

from kdp.proto import podresources_v1_pb2 as podresources

from .protocol.pods import ScenarioError
from .protocol.registry import Refusal
from .protocol.wire import PluginConnection

_T = TypeVar("_T")


@attrs.define(eq=False)
class _Armed(Generic[_T]):
    """A fault, and how often it still meets something."""

    fault: _T
    left: float


class Countdown(Generic[_T]):
    """Faults in the order in which they were armed, each with how often it still meets something.

    Args:
        what: What they meet, for errors.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._armed: list[_Armed[_T]] = []

    def __bool__(self) -> bool:
        """Tell whether any fault waits."""
        return bool(self._armed)

    def clear(self) -> None:
        """Disarm them all."""
        self._armed.clear()

    def arm(self, fault: _T, times: int | None) -> None:
        """Let a fault meet the next ones, ``times`` of them; None: all.

        Raises:
            ScenarioError: That is less than one.
        """
        if times is not None and times < 1:
            raise ScenarioError(f"a fault cannot meet {times} {self._what}")
        self._armed.append(_Armed(fault, math.inf if times is None else times))

    def meeting(self, is_met: Callable[[_T], bool] = lambda _: True) -> Iterator[_T]:
        """Yield those that meet what just came, each counted when it is taken."""
        for armed in [each for each in self._armed if is_met(each.fault)]:
            if armed in self._armed:  # or another call has met it for the last time meanwhile
                armed.left -= 1
                if armed.left < 1:
                    self._armed.remove(armed)
                yield armed.fault


@attrs.frozen(kw_only=True)
class RegisterFault:
    """What happens to one Register call.

    Attributes:
        delay: Seconds that the reply comes late, after everything else was done.
        code: The status to answer with at once, without looking at the request; None to treat it properly.
        text: The status's text; ``{socket}`` stands for the path of the plugin's socket.
        hang: Neither answer nor dial.
        drop: Break the connection instead of answering.
        dial: Whether the plugin is dialed; without it Register is answered ok all the same.
        options: Whether GetDevicePluginOptions is called after dialing.
        stream: Whether ListAndWatch is called after dialing.
        connections: How many connections, each with its own stream, are made.
        dial_delay: Seconds until the plugin is dialed.
        resource: Whose calls it meets; None: any. Others go past it and are treated properly, or meet the next fault.
    """

    delay: float = 0.0
    code: str | None = None
    text: str = ""
    hang: bool = False
    drop: bool = False
    dial: bool = True
    options: bool = True
    stream: bool = True
    connections: int = 1
    dial_delay: float = 0.0
    resource: str | None = None


@attrs.frozen(kw_only=True)
class WatcherFault:
    """What happens to one socket that the watcher treats.

    Attributes:
        info_timeout: Seconds that GetInfo gets; None for the kubelet's own.
        refusal: Notify the plugin of this failure instead of registering it.
        notify: Whether the plugin is notified at all.
        backoff: Fail without dialing, and leave the socket alone for so many seconds.
    """

    info_timeout: float | None = None
    refusal: str | None = None
    notify: bool = True
    backoff: float | None = None


@attrs.frozen
class _Answer:
    """What becomes of a call of one method, or of all."""

    method: str | None
    delay: float
    code: str | None
    text: str


_Change = Callable[[podresources.ListPodResourcesResponse], object]


class WatcherQueue:
    """The faults of a plugin watcher that still wait for a socket to meet."""

    def __init__(self) -> None:
        self.watched: Countdown[WatcherFault] = Countdown("sockets")
        self.missed: Countdown[None] = Countdown("sockets")

    def clear(self) -> None:
        """Disarm them all."""
        self.watched.clear()
        self.missed.clear()

    def next_watched(self) -> WatcherFault:
        """Take the fault that meets the socket that the watcher now treats."""
        return next(self.watched.meeting(), WatcherFault())

    def misses_create(self) -> bool:
        """Take whether the watcher misses the socket that just appeared."""
        return any(True for _ in self.missed.meeting())


class ArmedFaults(WatcherQueue):
    """The faults of one simulated kubelet that still wait for something to meet.

    Attributes:
        authority: What connections name as their authority; None: the socket's path.
        max_receive_bytes: The largest message that a connection takes; None: no limit.
        deduplicates: Whether a Register that is on record is answered ok, and nothing happens.
        disconnect_delay: Seconds until the kubelet acts on a stream's end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.registers: Countdown[RegisterFault] = Countdown("calls")
        self._answers: Countdown[_Answer] = Countdown("calls")
        self._changes: Countdown[_Change] = Countdown("calls")
        self._reset()

    def _reset(self) -> None:
        self.authority: str | None = "localhost"
        self.max_receive_bytes: int | None = None
        self.deduplicates = False
        self.disconnect_delay = 0.0

    @override
    def clear(self) -> None:
        super().clear()
        for armed in (self.registers, self._answers, self._changes):
            armed.clear()
        self._reset()

    # -- Register ------------------------------------------------------------------------------------------------------

    def next_register(self, resource: str = "") -> RegisterFault:
        """Take the fault that meets the Register call that just came, for this resource."""
        return next(self.registers.meeting(lambda fault: fault.resource in (None, resource)), RegisterFault())

    def connection(self, socket_path: str) -> PluginConnection:
        """Return the connection for a plugin that is about to be dialed at its socket."""
        return PluginConnection(socket_path, authority=self.authority, max_receive_bytes=self.max_receive_bytes)

    # -- the pod-resources API -----------------------------------------------------------------------------------------

    def arm_answer(
        self, times: int | None, *, method: str | None, delay: float = 0.0, code: str | None = None, text: str = ""
    ) -> None:
        """Delay or refuse the next calls of a method, or of all."""
        self._answers.arm(_Answer(method, delay, code, text), times)

    def arm_change(self, times: int | None, change: _Change) -> None:
        """Change the next replies of List."""
        self._changes.arm(change, times)

    async def meet(self, method: str) -> None:
        """Let the faults meet a call of ``method``, for example ``List``; a server awaits it before it answers.

        Raises:
            Refusal: The call is answered with that status.
        """
        for answer in self._answers.meeting(lambda each: each.method in (None, method)):
            await anyio.sleep(answer.delay)
            if answer.code is not None:
                raise Refusal(answer.text, answer.code)

    def shape(self, reply: bytes) -> bytes:
        """Return a serialised ListPodResourcesResponse as the faults make it; a server sends that."""
        if not self._changes:
            return reply
        message = podresources.ListPodResourcesResponse.FromString(reply)
        for change in self._changes.meeting():
            change(message)
        return message.SerializeToString()
