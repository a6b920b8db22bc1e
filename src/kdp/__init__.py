"""kdp: write a Kubernetes device plugin in Python by subclassing one class.

A tour of the names, in the order in which a vendor meets them:

* `DeviceBackend` is the class to subclass: one mandatory method, ``discover``.
* `Device`, `Health`, `Quantity`, `Version` say what is there; `ContainerEdits` with `DeviceNode`, `Mount` and `Hook`
  say what a container needs. All are frozen values that check themselves.
* `RequestPolicy`, `Taint` and `BindingConditions` say how a device may be claimed, where a DRA driver serves it, and
  `Claim` which claim it was; `NetworkData` says what is known of a network device that it has.
* `HealthPolicy` says from when on a device counts as dead, and as alive again.
* `default_labels` and `label_value` help to label the node (``labels``).
* `Allocation`, `PreferRequest`, `Reporter` and `Needs` are what the optional hooks get and return.
* `NotReady`, `NoHardware`, and `AllocationError` are the errors that a hook raises on purpose; the others are in
  `kdp.errors`, whose docstring draws the tree.
* `run` makes a process of it (signals, exit codes); `serve` runs it inside somebody's asyncio program.

``import kdp`` loads neither gRPC nor asyncio: those come with `run` and `serve`.
"""

from __future__ import annotations

from .startup import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

__version__ = "0.1.0"
