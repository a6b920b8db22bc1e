"""The faults of the contract's section 14 that only kdp's own tests have, down to HTTP/2 and the plugin's process.

`kdp.testing.Faults` has those that the conformance checks use, or that a vendor's test can act on. `FaultyKubelet` has
all 85.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from kdp.testing import Faults, SimulatedKubelet

from .calls import CallFaults
from .directory import DiskFaults
from .lifecycle import RecordFaults
from .process import ProcessFaults
from .register import DialFaults
from .sockets import OddSocketFaults
from .streams import RelayedFaults, StreamFaults

__all__ = ["AllFaults", "FaultyKubelet"]


class AllFaults(OddSocketFaults, DialFaults, DiskFaults, RecordFaults, CallFaults, ProcessFaults, Faults, StreamFaults):
    """All faults of one simulated kubelet."""


class FaultyKubelet(SimulatedKubelet):
    """A simulated kubelet that can do everything wrong."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        armed = RelayedFaults(lambda relay: self._entered().start_soon(relay))
        self._armed = armed
        self._all_faults = AllFaults(self, self._current, armed)

    @property
    @override
    def faults(self) -> AllFaults:
        return self._all_faults
