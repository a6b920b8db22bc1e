"""The node's files as typed readings, on a live root or a snapshot, and the kernel's events about devices.

It knows nothing of Kubernetes.

* `Host` is the node's file system: everything begins there. `NodeFiles` is the part of it that a `Directory` has.
* `Directory` is a directory of sysfs or procfs with typed readers; each returns a `Reading`, a value or the reason why
  there is none. `PciFunction` (with `PciLink`) and `NetInterface` are directories that know their attributes.
* `LastKnown` keeps what attributes said, so that one that fails for once renames no device.
* `attributes_of` makes attributes of a `kdp.Device` of what was read.
* `UeventWatch` waits for the kernel's word of devices (`Uevent`), `LinkWatch` for that of network interfaces
  (`LinkEvent`), `DirectoryWatch` for names in directories.

A backend reaches hardware files only through the `Host` that it was given, so that it runs as well on a snapshot of
another node: see docs/how-to/read-hardware.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .events.directories import DirectoryWatch
from .host import Host

if TYPE_CHECKING:
    from .attributes import attributes_of
    from .directory import Directory, NetInterface, NodeFiles, PciFunction
    from .events.links import LinkEvent, LinkWatch
    from .events.uevents import Uevent, UeventWatch
    from .lastknown import LastKnown
    from .pci import PciLink
    from .readings import Reading

__all__ = [
    "Directory",
    "DirectoryWatch",
    "Host",
    "LastKnown",
    "LinkEvent",
    "LinkWatch",
    "NetInterface",
    "NodeFiles",
    "PciFunction",
    "PciLink",
    "Reading",
    "Uevent",
    "UeventWatch",
    "attributes_of",
]

_HOMES = {
    "Directory": "directory",
    "LastKnown": "lastknown",
    "LinkEvent": "events.links",
    "LinkWatch": "events.links",
    "NetInterface": "directory",
    "NodeFiles": "directory",
    "PciFunction": "directory",
    "PciLink": "pci",
    "Reading": "readings",
    "Uevent": "events.uevents",
    "UeventWatch": "events.uevents",
    "attributes_of": "attributes",
}


def __getattr__(name: str) -> object:
    """Load a reader's module on first use: a plugin that needs only `Host` starts sooner (PEP 562)."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
