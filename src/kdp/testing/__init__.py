"""A kubelet for tests: real sockets, a modelled device manager, and faults on command.

`SimulatedKubelet` is the whole of it; ``kubelet.events`` tells what happened, ``kubelet.faults`` makes it misbehave,
`Pod` and `Container` are what it is asked to admit, `AdmittedPod` is what comes of it. As a process of its own:
``python -m kdp.testing.process``.

```python
async with SimulatedKubelet() as kubelet:
    ...  # start the plugin on kubelet.paths
    await kubelet.until(allocatable={"example.com/widget": 2})
    admitted = await kubelet.admit(Pod.asking({"example.com/widget": 1}))
    assert admitted.reply().devices
    await kubelet.restart()
```

Everything is learnt from the kubelet contract; no value of its public interface is a protobuf or gRPC type.
"""

from __future__ import annotations

from . import events
from .events import Event, EventLog
from .faults import Faults, RegisterFault
from .kubelet import NotReached, SimulatedKubelet
from .pods import (
    AdmissionError,
    AdmittedContainer,
    AdmittedPod,
    Container,
    ContainerReply,
    ContainerStartError,
    DeviceSpec,
    MountSpec,
    Pod,
    ScenarioError,
)
from .profiles import DEFAULT_PROFILE, PROFILES, Profile
from .wire import CallError, DialError, ListedDevice, PluginConnection, PluginInfo, PluginOptions, PluginStream
from .workload import NodeStatus

__all__ = [
    "DEFAULT_PROFILE",
    "PROFILES",
    "AdmissionError",
    "AdmittedContainer",
    "AdmittedPod",
    "CallError",
    "Container",
    "ContainerReply",
    "ContainerStartError",
    "DeviceSpec",
    "DialError",
    "Event",
    "EventLog",
    "Faults",
    "ListedDevice",
    "MountSpec",
    "NodeStatus",
    "NotReached",
    "PluginConnection",
    "PluginInfo",
    "PluginOptions",
    "PluginStream",
    "Pod",
    "Profile",
    "RegisterFault",
    "ScenarioError",
    "SimulatedKubelet",
    "events",
]
