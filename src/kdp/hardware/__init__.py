"""The node's files as typed readings, on a live root or a snapshot, and the kernel's events about devices.

It does not know Kubernetes.

* `Host` is the node's file system: everything begins there. `NodeFiles` is the part of it that a `Directory` has.
* `Directory` is a directory of sysfs or procfs with typed readers; each returns a `Reading`, a value or the reason why
  there is none. `PciFunction` (with `PciLink`) and `NetInterface` are directories that know their attributes.
* `IommuGroup` is the functions that VFIO hands out together, and whether it does.
* `LastKnown` keeps what attributes said, so that one that fails for once renames no device.
* `attributes_of` makes attributes of a `kdp.Device` of what was read.
* `UeventWatch` waits for the kernel's word of devices (`Uevent`), `LinkWatch` for that of network interfaces
  (`LinkEvent`), `DirectoryWatch` for names in directories, `PathWatch` for paths that match a pattern.
* `Threshold` is a limit with another one for the way back, so that a value near it makes no device flap.

A backend reaches hardware files only through the `Host` that it was given, so that it runs as well on a snapshot of
another node: see docs/how-to/read-hardware.md.
"""

from __future__ import annotations

from ..startup import lazy_imports

with lazy_imports(globals()):
    from .attributes import LastKnown as LastKnown
    from .attributes import Threshold as Threshold
    from .attributes import attributes_of as attributes_of
    from .directory import Directory as Directory
    from .directory import NetInterface as NetInterface
    from .directory import NodeFiles as NodeFiles
    from .directory import PciFunction as PciFunction
    from .host import Host as Host
    from .inotify import DirectoryWatch as DirectoryWatch
    from .inotify import PathWatch as PathWatch
    from .iommu import IommuGroup as IommuGroup
    from .netlink import LinkEvent as LinkEvent
    from .netlink import LinkWatch as LinkWatch
    from .netlink import Uevent as Uevent
    from .netlink import UeventWatch as UeventWatch
    from .pci import PciLink as PciLink
    from .readings import Reading as Reading
