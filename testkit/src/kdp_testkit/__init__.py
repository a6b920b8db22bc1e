"""A kubelet for tests: real sockets, a modelled device manager, and faults on command.

`SimulatedKubelet` is the whole of it; ``kubelet.events`` tells what happened, ``kubelet.faults`` makes it misbehave,
`Pod` and `Container` are what it is asked to admit, `AdmittedPod` is what comes of it. As a process of its own:
``python -m kdp_testkit.process``. `check_backend` judges a whole plugin with it. `SimulatedCluster` is the same for DRA
drivers: an API server and a node.

```python
async with SimulatedKubelet() as kubelet, kubelet.serving(Widgets()):
    admitted = await kubelet.admit(Pod.asking({"example.com/widget": 1}))
    assert admitted.reply().devices
    await kubelet.restart()
```

Everything is learnt from the kubelet contract (docs/explanation/kubelet.md); no value of its public interface is a
protobuf or gRPC type.
"""

from __future__ import annotations

from kdp.startup import lazy_imports

with lazy_imports(globals()):
    from . import events as events
    from .conformance import Levers as Levers
    from .conformance import check_backend as check_backend
    from .devicemanager.workload import NodeStatus as NodeStatus
    from .dra.cluster import SimulatedCluster as SimulatedCluster
    from .dra.pods import DraPod as DraPod
    from .dra.pods import PodStartError as PodStartError
    from .dra.pods import PodStopError as PodStopError
    from .events import Event as Event
    from .events import EventLog as EventLog
    from .faults import Faults as Faults
    from .faults import RegisterFault as RegisterFault
    from .kubelet import SimulatedKubelet as SimulatedKubelet
    from .profiles import DEFAULT_PROFILE as DEFAULT_PROFILE
    from .profiles import PROFILES as PROFILES
    from .profiles import Profile as Profile
    from .protocol.pods import AdmissionError as AdmissionError
    from .protocol.pods import AdmittedContainer as AdmittedContainer
    from .protocol.pods import AdmittedPod as AdmittedPod
    from .protocol.pods import Container as Container
    from .protocol.pods import ContainerReply as ContainerReply
    from .protocol.pods import ContainerStartError as ContainerStartError
    from .protocol.pods import DeviceSpec as DeviceSpec
    from .protocol.pods import KubeletPanic as KubeletPanic
    from .protocol.pods import MountSpec as MountSpec
    from .protocol.pods import NotReached as NotReached
    from .protocol.pods import Pod as Pod
    from .protocol.pods import ScenarioError as ScenarioError
    from .protocol.wire import CallError as CallError
    from .protocol.wire import DialError as DialError
    from .protocol.wire import ListedDevice as ListedDevice
    from .protocol.wire import PluginConnection as PluginConnection
    from .protocol.wire import PluginInfo as PluginInfo
    from .protocol.wire import PluginOptions as PluginOptions
    from .protocol.wire import PluginStream as PluginStream
    from .recording import RecordingError as RecordingError
    from .recording import ReplayDiffers as ReplayDiffers
    from .recording import replay as replay
    from .sysfs import SysfsTree as SysfsTree
