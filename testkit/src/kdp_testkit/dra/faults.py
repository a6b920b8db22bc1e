"""How the simulated kubelet misbehaves towards DRA drivers on command: named methods of ``kubelet.faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..armed_faults import WatcherQueue
from ..faults.watcher import WatcherFaults
from ..protocol.pods import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .kubelet_process import DraKubeletProcess


class DraFaults(WatcherFaults[WatcherQueue]):
    """The faults of one simulated kubelet.

    Args:
        process: Returns its process; None while it is down.
    """

    def __init__(self, process: Callable[[], DraKubeletProcess | None]) -> None:
        self.armed = WatcherQueue()
        self._process = process

    def end_health_streams(self, driver: str) -> None:
        """Cancel the health streams of a driver; the kubelet opens them again after 5 s, and knows nothing until then.

        A good driver sends a full report at once on every new stream.

        Raises:
            ScenarioError: No stream is open.
        """
        process = self._process()
        instances = [] if process is None else process.drivers.of(driver)
        streaming = [instance for instance in instances if instance.health is not None]
        if not streaming:
            raise ScenarioError(f"there is no health stream of {driver}")
        for instance in streaming:
            instance.end_health()
