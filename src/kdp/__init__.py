"""kdp: write a Kubernetes device plugin in Python by subclassing one class.

A tour of the names, in the order in which a vendor meets them:

* `DeviceBackend` is the class to subclass: one mandatory method, ``discover``.
* `Device`, `Health`, `Quantity`, `Version` say what is there; `ContainerEdits` with `DeviceNode`, `Mount` and `Hook`
  say what a container needs. All are frozen values that check themselves.
* `RequestPolicy`, `Taint` and `BindingConditions` say how a device may be claimed, where a DRA driver serves it, and
  `Claim` which claim it was; `NetworkData` says what is known of a network device that it has.
* `HealthPolicy` says from when on a device counts as dead, and as alive again.
* `Allocation`, `PreferRequest`, `Reporter` and `Needs` are what the optional hooks get and return.
* `NotReady` and `AllocationError` are the two errors that a hook raises on purpose; the other errors are in
  `kdp.errors`, whose docstring draws the tree.
* `run` makes a process of it (signals, exit codes); `serve` runs it inside somebody's asyncio program.

``import kdp`` loads neither gRPC nor asyncio: those come with `run` and `serve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import AllocationError, ConfigurationError, InvalidValueError, KdpError, NotReady
from .model.backend import Allocation, DeviceBackend, Needs, PreferRequest, Reporter
from .model.devices import Device, Health, Quantity, Version
from .model.edits import ContainerEdits, DeviceNode, Hook, Mount
from .model.health_policy import HealthPolicy

if TYPE_CHECKING:
    from .daemon import run, serve
    from .model.claims import BindingConditions, Claim, NetworkData, RequestPolicy, Taint

__all__ = [
    "Allocation",
    "AllocationError",
    "BindingConditions",
    "Claim",
    "ConfigurationError",
    "ContainerEdits",
    "Device",
    "DeviceBackend",
    "DeviceNode",
    "Health",
    "HealthPolicy",
    "Hook",
    "InvalidValueError",
    "KdpError",
    "Mount",
    "Needs",
    "NetworkData",
    "NotReady",
    "PreferRequest",
    "Quantity",
    "Reporter",
    "RequestPolicy",
    "Taint",
    "Version",
    "run",
    "serve",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Load the process side and what only DRA has on first use, so that the model alone stays light (PEP 562)."""
    if name in ("run", "serve"):
        import gc

        collecting = gc.isenabled()
        gc.disable()  # collections while all is loaded find nothing and take their share of the start
        try:
            from . import daemon
        finally:
            if collecting:
                gc.enable()
        return getattr(daemon, name)
    if name in ("BindingConditions", "Claim", "NetworkData", "RequestPolicy", "Taint"):
        from .model import claims

        found: object = getattr(claims, name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
