"""kdp: write a Kubernetes device plugin in Python by subclassing one class.

A tour of the names, in the order in which a vendor meets them:

* `DeviceBackend` is the class to subclass: one mandatory method, ``discover``.
* `Device`, `Health`, `Quantity`, and `Version` describe the hardware. `ContainerEdits` with `DeviceNode`, `Mount`, and
  `CdiHook` describe the needs of a container. All are frozen values that check themselves.
* A DRA driver publishes `RequestPolicy`, `Taint`, and `BindingConditions` with a device. A hook gets the `Claim`, and
  returns the `NetworkData` of a network device in it.
* `HealthPolicy` decides from when on a device counts as dead, and as alive again.
* `default_labels` and `label_value` help to label the node (``labels``).
* The optional hooks get and return `Allocation`, `PreferRequest`, `Reporter`, and `Needs`.
* `WatchedFile` is a file of the backend, such as a table of slots (``watched_file``).
* A hook raises `NotReady`, `NoHardware`, and `AllocationError` on purpose. The other errors are in `kdp.errors`; its
  docstring draws the tree.
* `run` makes a process of a backend (signals, exit codes). `serve` runs it inside an asyncio program.

``import kdp`` loads neither gRPC nor asyncio: those come with `run` and `serve`.
"""

from __future__ import annotations

from ._version import __version__ as __version__
from .startup import lazy_imports

with lazy_imports(globals()):
    from .daemon import run as run
    from .daemon import serve as serve
    from .errors import AllocationError as AllocationError
    from .errors import ConfigurationError as ConfigurationError
    from .errors import InvalidValueError as InvalidValueError
    from .errors import KdpError as KdpError
    from .errors import NoHardware as NoHardware
    from .errors import NotReady as NotReady
    from .model.backend import Allocation as Allocation
    from .model.backend import DeviceBackend as DeviceBackend
    from .model.backend import PreferRequest as PreferRequest
    from .model.backend import Reporter as Reporter
    from .model.claims import BindingConditions as BindingConditions
    from .model.claims import Claim as Claim
    from .model.claims import NetworkData as NetworkData
    from .model.claims import RequestPolicy as RequestPolicy
    from .model.claims import Taint as Taint
    from .model.devices import Device as Device
    from .model.devices import Health as Health
    from .model.devices import Version as Version
    from .model.edits import CdiHook as CdiHook
    from .model.edits import ContainerEdits as ContainerEdits
    from .model.edits import DeviceNode as DeviceNode
    from .model.edits import Mount as Mount
    from .model.health_policy import HealthPolicy as HealthPolicy
    from .model.labels import default_labels as default_labels
    from .model.labels import label_value as label_value
    from .model.measurements import Measurement as Measurement
    from .model.needs import Needs as Needs
    from .model.quantities import Quantity as Quantity
    from .model.watched_file import WatchedFile as WatchedFile
