"""Faults 66 to 72: the plugin watcher. They meet the next sockets that it treats, ``times`` of them (None: all)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
from typing_extensions import override

from ..pods import ScenarioError
from ..reconciler import MAX_BACKOFF
from .base import FaultGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..kubelet import SimulatedKubelet
    from ..kubelet_process import Life

__all__ = ["WatcherFault", "WatcherFaults", "WatcherQueue"]


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


class WatcherQueue:
    """The faults of a plugin watcher that still wait for a socket to meet."""

    def __init__(self) -> None:
        self._watched: list[tuple[WatcherFault, float]] = []
        self._missed = 0.0

    def _drop_watched(self) -> None:
        """Disarm them all."""
        self._watched.clear()
        self._missed = 0.0

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


class WatcherFaults(FaultGroup, WatcherQueue):
    """Faults of the plugin watcher."""

    def __init__(self, kubelet: SimulatedKubelet, life: Callable[[], Life | None]) -> None:
        super().__init__(kubelet, life)
        WatcherQueue.__init__(self)  # the groups' common root calls nobody

    @override
    def clear(self) -> None:
        super().clear()
        self._drop_watched()

    def info_times_out(self, seconds: float = 0.0, *, times: int | None = 1) -> None:
        """Fault 66: GetInfo is given up after ``seconds``, where the kubelet gives it 1 s.

        On a node: a plugin's process that was starved. The path then backs off, from 0.5 s to 122 s.

        A good plugin answers GetInfo from memory, and makes a new socket when no stream follows.
        """
        self._add(WatcherFault(info_timeout=seconds), times)

    def notify_refused(self, text: str = "the node is drained", *, times: int | None = 1) -> None:
        """Fault 67: the plugin is not registered, and NotifyRegistrationStatus says so with this reason.

        On a node: kubelets up to 1.35.4 then hold it for registered and never try again (B20).

        A good plugin says the text, and makes a new socket with growing pauses.
        """
        self._add(WatcherFault(refusal=text), times)

    def notify_never(self, *, times: int | None = 1) -> None:
        """Fault 68: the plugin is registered, and NotifyRegistrationStatus is never called.

        On a node: the kubelet ended between the two.

        A good plugin goes by its stream, not by the notice.
        """
        self._add(WatcherFault(notify=False), times)

    async def walk_again(self) -> None:
        """Fault 69: the kubelet restarts and walks the watcher's directory, in which the sockets have stayed.

        On a node: every restart; nothing is deleted there (section 3).

        A good plugin is found again without doing anything, or under a new socket when its stream has ended.
        """
        await self._kubelet.restart()

    def watcher_backs_off(self, seconds: float = MAX_BACKOFF, *, times: int | None = 1) -> None:
        """Fault 70: the watcher fails to dial a socket and leaves its path alone for up to 122 s.

        On a node: a path that failed eight times before, perhaps of an instance that is long dead (B21).

        A good plugin makes a new socket after a minute without a call: a new path has no backoff.
        """
        self._add(WatcherFault(backoff=seconds), times)

    def miss_creates(self, *, times: int | None = 1) -> None:
        """Fault 71: the watcher misses that a socket appears.

        On a node: its inotify queue ran over, or the directory's watch came a moment too late.

        A good plugin makes a new socket after a minute without a call.
        """
        self._missed += _count(times)

    def path_like_authority(self) -> None:
        """Fault 72: connections made from now on name the socket's path, percent-encoded, as their authority.

        On a node: the plugin watcher's dial, and kubelets up to 1.25 (section 2.4, B22).

        A good plugin takes any authority.
        """
        self._authority = None

    def _add(self, fault: WatcherFault, times: int | None) -> None:
        self._watched.append((fault, _count(times)))


def _count(times: int | None) -> float:
    if times is not None and times < 1:
        raise ScenarioError(f"a fault cannot meet {times} sockets")
    return math.inf if times is None else times
