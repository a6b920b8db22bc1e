"""`FaultGroup`: what every group of faults works with."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from ..protocol.pods import ScenarioError

if TYPE_CHECKING:
    from pathlib import Path

    from ..armed_faults import ArmedFaults, RegisterFault
    from ..devicemanager.kubelet_core import CurrentProcess, KubeletCore


class FaultGroup:
    """Some faults of one simulated kubelet.

    Args:
        kubelet: The kubelet, which is stopped, started, and looked at.
        process: Its process, if it has one now.
        armed: What waits for something to meet.

    Attributes:
        armed: As given.
    """

    def __init__(self, kubelet: KubeletCore, process: CurrentProcess, armed: ArmedFaults) -> None:
        self._kubelet = kubelet
        self._process = process
        self.armed = armed

    def release(self) -> None:
        """Give back what faults hold: sockets, limits, stopped processes. Called at the kubelet's end; idempotent."""

    def register(self, fault: RegisterFault, *, times: int | None = 1) -> None:
        """Queue any combination of faults for the next Register calls."""
        self.armed.registers.arm(fault, times)

    def _must_be_stopped(self, why: str) -> None:
        if self._kubelet.is_running:
            raise ScenarioError(f"the kubelet is running: {why}; stop or crash it first")


def remove(path: Path) -> None:
    """Remove whatever lies there; nothing will do."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
