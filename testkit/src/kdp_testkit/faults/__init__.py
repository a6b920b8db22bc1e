"""How the simulated kubelet misbehaves on command, by the numbers of the contract's section 14.

Here are the faults that the conformance checks use, and those that a vendor's own test can act on; kdp's own tests have
the others. Each fault is a method whose docstring begins with its number and says what happens on a node and what a
good plugin does about it. Faults of the kubelet's doings (Register, dialing, the plugin watcher, the pod-resources API)
are armed first and meet what comes next, mostly a number of ``times``; `Faults.clear` disarms them. Faults of files and
of the kubelet's life happen at once. What would need a kubelet that is stopped, or one that runs, is refused with a
sentence.

A handful are methods of the kubelet itself, because they need no word "fault": `SimulatedKubelet.drop_stream` (30),
`sever` (32), `pause_reading` (33), `checkpoint_noise` (27). One file for each group: `register`, `sockets`,
`directory`, `lifecycle`, `watcher`, `podresources`; what waits for something to meet is in `armed_faults`.
"""

from __future__ import annotations

from ..armed_faults import RegisterFault
from .directory import DirectoryFaults
from .lifecycle import LifeCycleFaults
from .podresources import PodResourcesFaults
from .register import RegisterFaults
from .sockets import SocketFaults
from .watcher import WatcherFaults

__all__ = ["Faults", "RegisterFault"]


class Faults(
    RegisterFaults,
    SocketFaults,
    DirectoryFaults,
    LifeCycleFaults,
    WatcherFaults,
    PodResourcesFaults,
):
    """The faults of one simulated kubelet; reached as ``kubelet.faults``."""
