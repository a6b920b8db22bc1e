"""How the simulated kubelet misbehaves on command: the 85 faults of the contract's section 14.

Each fault is a method whose docstring begins with its number and says what happens on a node and what a good plugin
does about it. Faults of the kubelet's doings (Register, dialing, the plugin watcher, the pod-resources API) are armed
first and meet what comes next, mostly a number of ``times``; `Faults.clear` disarms them. Faults of files, streams,
calls, processes and of the kubelet's life happen at once. What would need a kubelet that is stopped, or one that runs,
or a machine that has what this one lacks, is refused with a sentence.

A handful are methods of the kubelet itself, because they need no word "fault": `SimulatedKubelet.drop_stream` (30),
`sever` (32), `pause_reading` (33), `checkpoint_noise` (27). One file for each group: `register`, `sockets`,
`directory`, `streams`, `calls`, `lifecycle`, `watcher`, `podresources`, `process`; what waits for something to meet is
in `armed_faults`, bytes on the wire are in `relay`.
"""

from __future__ import annotations

from ..armed_faults import RegisterFault
from .calls import CallFaults
from .directory import DirectoryFaults
from .lifecycle import LifeCycleFaults
from .podresources import PodResourcesFaults
from .process import ProcessFaults
from .register import RegisterFaults
from .sockets import SocketFaults
from .streams import StreamFaults
from .watcher import WatcherFaults

__all__ = ["Faults", "RegisterFault"]


class Faults(
    RegisterFaults,
    SocketFaults,
    DirectoryFaults,
    StreamFaults,
    CallFaults,
    LifeCycleFaults,
    WatcherFaults,
    PodResourcesFaults,
    ProcessFaults,
):
    """The faults of one simulated kubelet; reached as ``kubelet.faults``."""
