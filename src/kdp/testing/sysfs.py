"""`SysfsTree`: a node's files for tests: PCI functions, NUMA nodes, device nodes, attribute files, below a temporary root.

Backends read it through `kdp.hardware.Host`, so they need not know. Paths are always those of the node, as in a backend.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING, NoReturn

from kdp.hardware import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["SysfsTree"]

_NULL = (1, 3)
"""The numbers of ``/dev/null``: a node that anybody may open and that does nothing."""


class SysfsTree:
    """A root directory that looks like a node's.

    Args:
        root: An empty directory, or one that does not exist yet.
        not_permitted: Called with the reason where the system does not let us make a device node; it must not return.
            The fixture skips the test; without it a PermissionError is raised.

    Attributes:
        host: What a backend is given.
    """

    def __init__(self, root: Path, *, not_permitted: Callable[[str], NoReturn] | None = None) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.host = Host(root)
        self._not_permitted = not_permitted

    def path(self, host_path: str) -> Path:
        """Return where a path of the node is on this machine."""
        return self.host.path(host_path)

    def write(self, host_path: str, text: str | int) -> str:
        """Write an attribute file, with the line break that the kernel puts behind it, and return its path on the node."""
        path = self.path(host_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
        return host_path

    def link(self, host_path: str, target: str) -> str:
        """Make a symbolic link to another path of the node; one that is there is replaced."""
        path = self.path(host_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        return host_path

    def remove(self, host_path: str) -> None:
        """Remove a file, a link, a device node or a whole directory, as when hardware is pulled out.

        Raises:
            FileNotFoundError: There is nothing.
        """
        path = self.path(host_path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    def numa_node(self, number: int, *, cpus: str = "0-3", memory_kib: int = 16 * 1024 * 1024) -> str:
        """Make a NUMA node and return its directory.

        Args:
            number: Its number.
            cpus: Its processors, as the kernel writes lists: ``0-3,8-11``.
            memory_kib: Its memory.
        """
        directory = f"/sys/devices/system/node/node{number}"
        self.write(f"{directory}/cpulist", cpus)
        self.write(f"{directory}/meminfo", f"Node {number} MemTotal: {memory_kib:>15} kB")
        there = self.host.glob("/sys/devices/system/node/node[0-9]*")
        numbers = sorted(int(path.rpartition("node")[2]) for path in there)
        self.write("/sys/devices/system/node/online", ",".join(map(str, numbers)))
        return directory

    def pci_function(
        self,
        address: str,
        *,
        vendor: int,
        device: int,
        class_code: int = 0x120000,
        numa_node: int = -1,
        driver: str | None = None,
        iommu_group: int | None = None,
        attributes: Mapping[str, str | int] | None = None,
    ) -> str:
        """Make a PCI function and return its directory, ``/sys/devices/pci<domain>:<bus>/<address>``.

        Its links are the kernel's: from ``/sys/bus/pci/devices``, and to and from its driver and its IOMMU group.

        Args:
            address: As ``0000:3b:00.0``.
            vendor: Vendor id.
            device: Device id.
            class_code: Class, subclass and interface; default: a processing accelerator.
            numa_node: What the file ``numa_node`` says; -1 is "unknown".
            driver: The driver that it is bound to.
            iommu_group: Its IOMMU group.
            attributes: More attribute files, by name.
        """
        domain, _, bus = address.rpartition(":")[0].partition(":")
        directory = f"/sys/devices/pci{domain}:{bus}/{address}"
        files: dict[str, str | int] = {
            "vendor": f"{vendor:#06x}",
            "device": f"{device:#06x}",
            "class": f"{class_code:#08x}",
            "numa_node": numa_node,
            "enable": 1,
        }
        for name, text in (files | dict(attributes or {})).items():
            self.write(f"{directory}/{name}", text)
        self.link(f"/sys/bus/pci/devices/{address}", directory)
        if driver is not None:
            self.link(f"{directory}/driver", f"/sys/bus/pci/drivers/{driver}")
            self.link(f"/sys/bus/pci/drivers/{driver}/{address}", directory)
        if iommu_group is not None:
            self.link(f"{directory}/iommu_group", f"/sys/kernel/iommu_groups/{iommu_group}")
            self.link(f"/sys/kernel/iommu_groups/{iommu_group}/devices/{address}", directory)
        return directory

    def char_device(self, host_path: str, *, major: int = _NULL[0], minor: int = _NULL[1]) -> str:
        """Make a character device node; without numbers it is a second ``/dev/null``. Needs root (CAP_MKNOD).

        Raises:
            PermissionError: It is not permitted, and nobody said what to do then.
        """
        path = self.path(host_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        except PermissionError:
            reason = f"a device node ({host_path}) can only be made by root (CAP_MKNOD)"
            if self._not_permitted is not None:
                self._not_permitted(reason)
            raise PermissionError(reason) from None
        return host_path
