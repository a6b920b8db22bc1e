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

from kdp.startup import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
