"""Faults 66 to 72: the plugin watcher. They meet the next sockets that it treats, ``times`` of them (None: all)."""

from __future__ import annotations

from ..armed_faults import WatcherFault
from ..reconciler import MAX_BACKOFF
from .base import FaultGroup


class WatcherFaults(FaultGroup):
    """Faults of the plugin watcher."""

    def info_times_out(self, seconds: float = 0.0, *, times: int | None = 1) -> None:
        """Fault 66: GetInfo is given up after ``seconds``, where the kubelet gives it 1 s.

        On a node: a plugin's process that was starved. The path then backs off, from 0.5 s to 122 s.

        A good plugin answers GetInfo from memory, and makes a new socket when no stream follows.
        """
        self.armed.arm_watcher(WatcherFault(info_timeout=seconds), times)

    def notify_refused(self, text: str = "the node is drained", *, times: int | None = 1) -> None:
        """Fault 67: the plugin is not registered, and NotifyRegistrationStatus says so with this reason.

        On a node: kubelets up to 1.35.4 then hold it for registered and never try again (B20).

        A good plugin says the text, and makes a new socket with growing pauses.
        """
        self.armed.arm_watcher(WatcherFault(refusal=text), times)

    def notify_never(self, *, times: int | None = 1) -> None:
        """Fault 68: the plugin is registered, and NotifyRegistrationStatus is never called.

        On a node: the kubelet ended between the two.

        A good plugin goes by its stream, not by the notice.
        """
        self.armed.arm_watcher(WatcherFault(notify=False), times)

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
        self.armed.arm_watcher(WatcherFault(backoff=seconds), times)

    def miss_creates(self, *, times: int | None = 1) -> None:
        """Fault 71: the watcher misses that a socket appears.

        On a node: its inotify queue ran over, or the directory's watch came a moment too late.

        A good plugin makes a new socket after a minute without a call.
        """
        self.armed.arm_missed_creates(times)

    def path_like_authority(self) -> None:
        """Fault 72: connections made from now on name the socket's path, percent-encoded, as their authority.

        On a node: the plugin watcher's dial, and kubelets up to 1.25 (section 2.4, B22).

        A good plugin takes any authority.
        """
        self.armed.authority = None
