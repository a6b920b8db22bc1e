"""`FaultGroup`: what every group of faults knows of its kubelet."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from ..pods import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..kubelet import SimulatedKubelet
    from ..kubelet_process import Client, Life

__all__ = ["FaultGroup", "remove"]


class FaultGroup:
    """Some faults of one simulated kubelet.

    Args:
        kubelet: The kubelet.
        life: Returns the life that it leads now; None while it is down.
    """

    def __init__(self, kubelet: SimulatedKubelet, life: Callable[[], Life | None]) -> None:
        self._kubelet = kubelet
        self._life = life
        self._authority: str | None = "localhost"

    def clear(self) -> None:
        """Disarm every fault that still waits for something to meet; those that happened stay."""
        self._authority = "localhost"

    def release(self) -> None:
        """Give back what faults hold: sockets, limits, stopped processes. Called at the kubelet's end; idempotent."""

    def _living(self, consequence: str) -> Life:
        life = self._life()
        if life is None:
            raise ScenarioError(f"the kubelet is not running: {consequence}")
        return life

    def _must_be_stopped(self, why: str) -> None:
        if self._kubelet.is_running:
            raise ScenarioError(f"the kubelet is running: {why}; stop or crash it first")

    def _client(self, resource: str) -> Client:
        client = self._living(f"nobody is connected for {resource}").client_of(resource)
        if client is None:
            raise ScenarioError(f"no plugin is connected for {resource}")
        return client

    def _streaming(self, resource: str) -> list[Client]:
        """The clients of a resource with an open stream, oldest first; at least one."""
        life = self._living(f"there is no stream of {resource}")
        streaming = [client for client in life.streams if client.resource == resource]
        if not streaming:
            raise ScenarioError(f"there is no open stream of {resource}")
        return streaming


def remove(path: Path) -> None:
    """Remove whatever lies there; nothing will do."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
