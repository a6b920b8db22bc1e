"""The simulated kubelet of the checks of DRA drivers, which looks far more often than a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...dra.kubelet import SimulatedDraKubelet
from ...dra.timings import DraTimings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ...dra.server import SimulatedApiServer
    from ...events import Event

NODE = "node0"
_TIMINGS = DraTimings(health_retry=0.2, watcher=0.05)


def dra_kubelet(
    server: SimulatedApiServer, root: Path, *, profile: str, listener: Callable[[Event], None] | None = None
) -> SimulatedDraKubelet:
    """Make the kubelet of the node.

    Args:
        server: The API server that it asks.
        root: Its root directory.
        profile: Which Kubernetes.
        listener: Called with each event at once.
    """
    return SimulatedDraKubelet(
        server.ask, root, node=NODE, profile=profile, tells_health=True, timings=_TIMINGS, listener=listener
    )
