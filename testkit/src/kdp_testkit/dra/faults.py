"""How the simulated kubelet misbehaves towards DRA drivers on command: named methods of ``kubelet.faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..armed_faults import WatcherFault, WatcherQueue
from ..protocol.pods import ScenarioError
from ..reconciler import MAX_BACKOFF

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .kubelet_process import DraKubeletProcess, DriverInstance


class DraFaults:
    """The faults of one simulated kubelet.

    Args:
        armed: The faults of its plugin watcher that wait for a socket to meet.
        checkpoint: The file in which it remembers its claims.
        process: Returns its process; None while it is down.
    """

    def __init__(self, armed: WatcherQueue, checkpoint: Path, process: Callable[[], DraKubeletProcess | None]) -> None:
        self._armed = armed
        self._checkpoint = checkpoint
        self._process = process

    def clear(self) -> None:
        """Disarm every fault that still waits for something to meet."""
        self._armed.clear()

    # -- registration --------------------------------------------------------------------------------------------------

    def registration_refused(self, text: str = "the node is drained", *, times: int | None = 1) -> None:
        """The driver is not registered, and NotifyRegistrationStatus says so with this reason.

        A good driver goes on serving, tells the text, is not ready, and is found again when it is tried again.
        """
        self._armed.arm_watcher(WatcherFault(refusal=text), times)

    def info_times_out(self, seconds: float = 0.0, *, times: int | None = 1) -> None:
        """GetInfo is given up after ``seconds``, where the kubelet gives it 1 s.

        A good driver answers GetInfo from memory.
        """
        self._armed.arm_watcher(WatcherFault(info_timeout=seconds), times)

    def notify_never(self, *, times: int | None = 1) -> None:
        """The driver is registered, and NotifyRegistrationStatus is never called.

        On a node: the kubelet ended between the two. A good driver works all the same.
        """
        self._armed.arm_watcher(WatcherFault(notify=False), times)

    def miss_creates(self, *, times: int | None = 1) -> None:
        """The watcher misses that a registration socket appears.

        A good driver makes a new socket after a while without a call.
        """
        self._armed.arm_missed_creates(times)

    def watcher_backs_off(self, seconds: float = MAX_BACKOFF, *, times: int | None = 1) -> None:
        """The watcher fails to dial a registration socket and leaves its path alone for up to 122 s.

        On a node: a driver was killed, and its socket lay there, dead, when the kubelet started.

        A good driver has a path that none of its predecessors had, or makes a new one after a while without a call.
        """
        self._armed.arm_watcher(WatcherFault(backoff=seconds), times)

    # -- connections ---------------------------------------------------------------------------------------------------

    def drop_connections(self, driver: str) -> None:
        """Break the connections to a driver's instances abruptly; the kubelet reconnects at once.

        A good driver does not mind: prepared claims and slices stay.

        Raises:
            ScenarioError: The driver is not registered.
        """
        for instance in self._of(driver):
            instance.connection.sever()

    def end_health_streams(self, driver: str) -> None:
        """Cancel the health streams of a driver; the kubelet opens them again after 5 s, and knows nothing until then.

        A good driver sends a full report at once on every new stream.

        Raises:
            ScenarioError: No stream is open.
        """
        streaming = [instance for instance in self._of(driver) if instance.health is not None]
        if not streaming:
            raise ScenarioError(f"there is no health stream of {driver}")
        for instance in streaming:
            instance.end_health()

    # -- state ---------------------------------------------------------------------------------------------------------

    def lose_checkpoint(self) -> None:
        """Remove the kubelet's checkpoint while it is down: it never unprepares what is prepared now.

        A good driver finds and releases claims that are gone by itself.

        Raises:
            ScenarioError: The kubelet runs.
        """
        if self._process() is not None:
            raise ScenarioError("the kubelet is running: it would write its checkpoint again; crash it first")
        self._checkpoint.unlink(missing_ok=True)

    def _of(self, driver: str) -> list[DriverInstance]:
        process = self._process()
        if process is None:
            raise ScenarioError("the kubelet is not running")
        instances = process.drivers.of(driver)
        if not instances:
            raise ScenarioError(f"no instance of {driver} is registered")
        return instances
