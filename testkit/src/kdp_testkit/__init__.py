"""A kubelet for tests: real sockets, a modelled device manager, and faults on command.

`SimulatedKubelet` is the whole of it; ``kubelet.events`` tells what happened, ``kubelet.faults`` makes it misbehave,
`Pod` and `Container` are what it is asked to admit, `AdmittedPod` is what comes of it. As a process of its own:
``python -m kdp_testkit.process``. `check_backend` judges a whole plugin with it.

```python
async with SimulatedKubelet() as kubelet:
    ...  # start the plugin on kubelet.paths
    await kubelet.until(allocatable={"example.com/widget": 2})
    admitted = await kubelet.admit(Pod.asking({"example.com/widget": 1}))
    assert admitted.reply().devices
    await kubelet.restart()
```

Everything is learnt from the kubelet contract (docs/explanation/kubelet.md); no value of its public interface is a
protobuf or gRPC type.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import events
    from .conformance import Levers, check_backend
    from .events import Event, EventLog
    from .faults import Faults, RegisterFault
    from .kubelet import SimulatedKubelet
    from .pods import (
        AdmissionError,
        AdmittedContainer,
        AdmittedPod,
        Container,
        ContainerReply,
        ContainerStartError,
        DeviceSpec,
        KubeletPanic,
        MountSpec,
        NotReached,
        Pod,
        ScenarioError,
    )
    from .profiles import DEFAULT_PROFILE, PROFILES, Profile
    from .recording import RecordingError, ReplayDiffers, replay
    from .sysfs import SysfsTree
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
    "KubeletPanic",
    "Levers",
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
    "RecordingError",
    "RegisterFault",
    "ReplayDiffers",
    "ScenarioError",
    "SimulatedKubelet",
    "SysfsTree",
    "check_backend",
    "events",
    "replay",
]

_HOMES = {
    "Levers": "conformance",
    "check_backend": "conformance",
    "Event": "events",
    "EventLog": "events",
    "Faults": "faults",
    "RegisterFault": "faults",
    "NotReached": "pods",
    "SimulatedKubelet": "kubelet",
    "AdmissionError": "pods",
    "AdmittedContainer": "pods",
    "AdmittedPod": "pods",
    "Container": "pods",
    "ContainerReply": "pods",
    "ContainerStartError": "pods",
    "DeviceSpec": "pods",
    "KubeletPanic": "pods",
    "MountSpec": "pods",
    "Pod": "pods",
    "ScenarioError": "pods",
    "DEFAULT_PROFILE": "profiles",
    "PROFILES": "profiles",
    "Profile": "profiles",
    "RecordingError": "recording",
    "ReplayDiffers": "recording",
    "replay": "recording",
    "SysfsTree": "sysfs",
    "CallError": "wire",
    "DialError": "wire",
    "ListedDevice": "wire",
    "PluginConnection": "wire",
    "PluginInfo": "wire",
    "PluginOptions": "wire",
    "PluginStream": "wire",
    "NodeStatus": "workload",
}
"""Where each name is defined."""


def __getattr__(name: str) -> object:
    """Load a name's module on first use, so that pytest can load this package's fixtures without gRPC (PEP 562)."""
    if name == "events":
        return importlib.import_module(f"{__name__}.events")
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
