"""Faults 66 to 68, 70, and 71: the plugin watcher, which finds device plugins and DRA drivers alike.

They are armed in `WatcherQueue`, which the watcher asks.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from ..armed_faults import WatcherFault, WatcherQueue
from ..reconciler import MAX_BACKOFF

_QueueT = TypeVar("_QueueT", bound=WatcherQueue)


class WatcherFaults(Generic[_QueueT]):
    """Faults of the plugin watcher.

    Attributes:
        armed: What waits for something to meet.
    """

    armed: _QueueT

    def clear(self) -> None:
        """Disarm every fault that still waits for something to meet; those that happened stay."""
        self.armed.clear()

    def info_times_out(self, seconds: float = 0.0, *, times: int | None = 1) -> None:
        """Fault 66: GetInfo is given up after ``seconds``, where the kubelet gives it 1 s.

        On a node: a plugin's process that was starved. The path then backs off, from 0.5 s to 122 s.

        A good plugin answers GetInfo from memory, and makes a new socket when no stream follows.
        """
        self.armed.watched.arm(WatcherFault(info_timeout=seconds), times)

    def notify_refused(self, text: str = "the node is drained", *, times: int | None = 1) -> None:
        """Fault 67: the plugin is not registered, and NotifyRegistrationStatus says so with this reason.

        On a node: kubelets up to 1.35.4 then hold it for registered and never try again (B20).

        A good plugin says the text, and makes a new socket with growing pauses.
        """
        self.armed.watched.arm(WatcherFault(refusal=text), times)

    def notify_never(self, *, times: int | None = 1) -> None:
        """Fault 68: the plugin is registered, and NotifyRegistrationStatus is never called.

        On a node: the kubelet ended between the two.

        A good plugin goes by its stream, not by the notice.
        """
        self.armed.watched.arm(WatcherFault(notify=False), times)

    def watcher_backs_off(self, seconds: float = MAX_BACKOFF, *, times: int | None = 1) -> None:
        """Fault 70: the watcher fails to dial a socket and leaves its path alone for up to 122 s.

        On a node: a path that failed eight times before, perhaps of an instance that is long dead (B21).

        A good plugin makes a new socket after a minute without a call: a new path has no backoff.
        """
        self.armed.watched.arm(WatcherFault(backoff=seconds), times)

    def miss_creates(self, *, times: int | None = 1) -> None:
        """Fault 71: the watcher misses that a socket appears.

        On a node: its inotify queue ran over, or the directory's watch came a moment too late.

        A good plugin makes a new socket after a minute without a call.
        """
        self.armed.missed.arm(None, times)
