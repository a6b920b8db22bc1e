"""`ArmedFaults`: what is to go wrong with what comes next. `faults` fills it, the kubelet's process asks it.

It commands nobody. A fault that has met its last call, socket, or connection is gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio
import attrs
from typing_extensions import override

from kdp.proto import podresources_v1_pb2 as podresources

from .protocol.pods import ScenarioError
from .protocol.registry import Refusal
from .protocol.wire import PluginConnection


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


@attrs.define
class _Answer:
    """What meets the next calls of one method, or of all."""

    method: str | None
    left: float
    delay: float
    code: str | None
    text: str


@attrs.define
class _Change:
    """What becomes of the next replies of List."""

    left: float
    change: Callable[[podresources.ListPodResourcesResponse], None]


class WatcherQueue:
    """The faults of a plugin watcher that still wait for a socket to meet."""

    def __init__(self) -> None:
        self._watched: list[tuple[WatcherFault, float]] = []
        self._missed = 0.0

    def clear(self) -> None:
        """Disarm them all."""
        self._watched.clear()
        self._missed = 0.0

    def arm_watcher(self, fault: WatcherFault, times: int | None) -> None:
        """Let a fault meet the next sockets; None: all of them."""
        self._watched.append((fault, _count(times, "sockets")))

    def arm_missed_creates(self, times: int | None) -> None:
        """Let the watcher miss the next sockets that appear; None: all of them."""
        self._missed += _count(times, "sockets")

    def next_watched(self) -> WatcherFault:
        """Take the fault that meets the socket that the watcher now treats."""
        if not self._watched:
            return WatcherFault()
        fault, left = self._watched.pop(0)
        if left > 1:
            self._watched.insert(0, (fault, left - 1))
        return fault

    def misses_create(self) -> bool:
        """Take whether the watcher misses the socket that just appeared."""
        missed = self._missed > 0
        self._missed = max(0.0, self._missed - 1)
        return missed


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
        self._registers: list[tuple[RegisterFault, float]] = []
        self._answers: list[_Answer] = []
        self._changes: list[_Change] = []
        self._reset()

    def _reset(self) -> None:
        self.authority: str | None = "localhost"
        self.max_receive_bytes: int | None = None
        self.deduplicates = False
        self.disconnect_delay = 0.0

    @override
    def clear(self) -> None:
        super().clear()
        self._registers.clear()
        self._answers.clear()
        self._changes.clear()
        self._reset()

    # -- Register ------------------------------------------------------------------------------------------------------

    def arm_register(self, fault: RegisterFault, times: int | None) -> None:
        """Let a fault meet the next Register calls; None: all of them."""
        self._registers.append((fault, _count(times, "calls")))

    def next_register(self, resource: str = "") -> RegisterFault:
        """Take the fault that meets the Register call that just came, for this resource."""
        for position, (fault, left) in enumerate(self._registers):
            if fault.resource in (None, resource):
                if left <= 1:
                    self._registers.pop(position)
                else:
                    self._registers[position] = (fault, left - 1)
                return fault
        return RegisterFault()

    def connection(self, socket_path: str) -> PluginConnection:
        """Return the connection for a plugin that is about to be dialed at its socket."""
        return PluginConnection(socket_path, authority=self.authority, max_receive_bytes=self.max_receive_bytes)

    # -- the pod-resources API -----------------------------------------------------------------------------------------

    def arm_answer(
        self, times: int | None, *, method: str | None, delay: float = 0.0, code: str | None = None, text: str = ""
    ) -> None:
        """Delay or refuse the next calls of a method, or of all."""
        self._answers.append(_Answer(method, _count(times, "calls"), delay, code, text))

    def arm_change(self, times: int | None, change: Callable[[podresources.ListPodResourcesResponse], None]) -> None:
        """Change the next replies of List."""
        self._changes.append(_Change(_count(times, "calls"), change))

    async def meet(self, method: str) -> None:
        """Let the faults meet a call of ``method``, for example ``List``; a server awaits it before it answers.

        Raises:
            Refusal: The call is answered with that status.
        """
        for answer in [a for a in self._answers if a.method in (None, method)]:
            answer.left -= 1
            if answer.left <= 0:
                self._answers.remove(answer)
            await anyio.sleep(answer.delay)
            if answer.code is not None:
                raise Refusal(answer.text, answer.code)

    def shape(self, reply: bytes) -> bytes:
        """Return a serialised ListPodResourcesResponse as the faults make it; a server sends that."""
        if not self._changes:
            return reply
        message = podresources.ListPodResourcesResponse.FromString(reply)
        for armed in list(self._changes):
            armed.left -= 1
            if armed.left <= 0:
                self._changes.remove(armed)
            armed.change(message)
        return message.SerializeToString()


def _count(times: int | None, what: str) -> float:
    if times is not None and times < 1:
        raise ScenarioError(f"a fault cannot meet {times} {what}")
    return math.inf if times is None else times
