"""`SysfsTree`: a node's files for tests, below a temporary root: made by hand, or those of a snapshot.

Backends read it through `kdp.hardware.Host`, so they need not know, and so does another process with ``--host-root``:
what a directory cannot hold (attributes that fail, device nodes that only root could make) is kept in the files
``UNREADABLE`` and ``DEVNODES`` at its top, see `kdp.hardware.fake_nodes`. Paths are always those of the node, as in a
backend.

The hardware may change under a running plugin: `SysfsTree.fail` and `SysfsTree.heal`, `SysfsTree.vanish` and
`SysfsTree.bring_back`, and `SysfsTree.uevent` and `SysfsTree.link_event` for what the kernel would say.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kdp.hardware import Host
from kdp.hardware.capture import capture
from kdp.hardware.fake_nodes import NODES, UNREADABLE, NodeEntry, make_stand_in, parse_nodes, parse_unreadable
from kdp.hardware.netlink import ADDRESSES, LINKS, UEVENTS
from kdp.hardware.snapshot import archive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_NULL = (1, 3)
"""The numbers of ``/dev/null``: a node that anybody may open and that does nothing."""


class SysfsTree:
    """A root directory that looks like a node's.

    Args:
        root: An empty directory, or one that does not exist yet; without a snapshot also the root of an earlier tree.
        snapshot: Begin with the files of this snapshot, as ``kdp snapshot`` wrote it.
        not_permitted: Called with the reason where the system does not let us make a device node; it must not return.
            The fixture skips the test; without it a PermissionError is raised.

    Attributes:
        host: What a backend is given.

    Raises:
        ConfigurationError: The snapshot cannot be used.
    """

    def __init__(
        self,
        root: Path,
        *,
        snapshot: str | os.PathLike[str] | None = None,
        not_permitted: Callable[[str], NoReturn] | None = None,
    ) -> None:
        held = archive.Snapshot(kernel="Linux 0 test") if snapshot is None else archive.read(snapshot)
        root.mkdir(parents=True, exist_ok=True)
        if snapshot is not None or not (root / NODES).exists():
            archive.unpack(held, root)
        self.host = Host(root)
        self._not_permitted = not_permitted
        self._vanished: dict[str, list[tuple[Path, Path]]] = {}
        self._vanishings = 0

    def path(self, host_path: str) -> Path:
        """Return where a path of the node is on this machine."""
        return self.host.path(host_path)

    def write(self, host_path: str, text: str | int) -> str:
        """Write an attribute file with the kernel's line break, and return its path on the node."""
        path = self.path(self.host.resolve(host_path))
        path.parent.mkdir(parents=True, exist_ok=True)
        self.heal(host_path)
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
            FileNotFoundError: It does not exist.
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

        It can be opened, as a container would; `stand_in` is one that cannot, and needs no right.

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

    def stand_in(self, host_path: str, *, major: int, minor: int, mode: int = 0o600) -> str:
        """Make what `kdp.hardware.Host` takes for a character device node, and nobody can open. Needs no right."""
        make_stand_in(self.path(host_path))
        self._edit(NODES, [host_path], f"{host_path} {NodeEntry(False, major, minor, mode).line}")
        return host_path

    # -- hardware that changes -----------------------------------------------------------------------------------------

    def fail(self, host_path: str, error: int = errno.EIO) -> str:
        """Let an attribute fail when it is read, and return its path, links followed. `write` and `heal` end that.

        Args:
            host_path: The attribute; it need not be there yet.
            error: ``errno.EINVAL``, ``errno.ENODEV``, ...
        """
        path = self.host.resolve(host_path)
        place, kept = self.path(path), self._kept("failing", path)
        if place.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            place.replace(kept)
        make_stand_in(place)
        reason = os.strerror(error)
        self._edit(UNREADABLE, [path], f"{path} {reason}")
        return path

    def heal(self, host_path: str) -> None:
        """Let an attribute that failed be read again, with its previous value; one without a value is empty."""
        path = self.host.resolve(host_path)
        place, kept = self.path(path), self._kept("failing", path)
        if path not in parse_unreadable((self.host.root / UNREADABLE).read_text()):
            return
        place.unlink(missing_ok=True)
        if kept.exists():
            kept.replace(place)
        else:
            place.touch()
        self._edit(UNREADABLE, [path])

    def vanish(self, host_path: str) -> None:
        """Pull hardware out: a file or a whole directory, all links to it, and its device nodes.

        Raises:
            FileNotFoundError: It does not exist.
        """
        path = self.host.resolve(host_path)
        if not os.path.lexists(self.path(path)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), host_path)
        numbers = {number for found in self._below(path) if found.endswith("/dev") and (number := self._said(found))}
        nodes = [
            node
            for node in self.host.device_nodes()
            if (of_node := self.host.device_number(node)) and f"{of_node[0]}:{of_node[1]}" in numbers
        ]
        links = [link for link in self._links() if self._leads_into(link, path)]
        self._vanishings += 1
        moves = self._vanished[path] = []
        for gone in (*nodes, *links, path):  # as the kernel does: what is outside goes first
            place, kept = self.path(gone), self._kept(f"vanished{self._vanishings}", gone)
            if os.path.lexists(place):
                kept.parent.mkdir(parents=True, exist_ok=True)
                place.rename(kept)
                moves.append((place, kept))

    def bring_back(self, host_path: str) -> None:
        """Plug in what `vanish` took.

        Raises:
            FileNotFoundError: This path has not vanished.
        """
        try:
            moves = self._vanished.pop(host_path, None) or self._vanished.pop(self._vanished_as(host_path))
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "nothing of this path has vanished", host_path) from None
        for place, kept in reversed(moves):
            place.parent.mkdir(parents=True, exist_ok=True)
            kept.rename(place)

    def uevent(self, action: str, host_path: str, **properties: str) -> None:
        """Say what the kernel would of a device; each `kdp.hardware.UeventWatch` on this tree hears it.

        Args:
            action: ``add``, ``remove``, ``change``.
            host_path: The device's directory; it may be gone already.
            properties: More than ``ACTION``, ``DEVPATH``, ``SUBSYSTEM`` and what its attribute ``uevent`` says.
        """
        path = self.host.resolve(host_path)
        directory = self.host.directory(path)
        properties_sent = {"ACTION": action, "DEVPATH": path.removeprefix("/sys"), "SUBSYSTEM": ""}
        if directory.exists:
            properties_sent |= directory.properties() | {"SUBSYSTEM": directory.subsystem or ""}
        with (self.host.root / UEVENTS).open("a") as stream:
            stream.write(f"{json.dumps(properties_sent | properties)}\n")

    def link_event(self, name: str, *, state: str = "unknown", is_gone: bool = False) -> None:
        """Say what the kernel would of a network interface; each `kdp.hardware.LinkWatch` on this tree hears it.

        Args:
            name: The interface's name; it need not be there.
            state: As its ``operstate``.
            is_gone: Whether it was removed.
        """
        index = self.host.directory(f"/sys/class/net/{name}").integer("ifindex").or_else(0)
        with (self.host.root / LINKS).open("a") as stream:
            properties_sent = {"name": name, "index": index, "is_gone": is_gone, "state": state}
            stream.write(f"{json.dumps(properties_sent)}\n")

    def address(self, name: str, address: str) -> None:
        """Give a network interface an address, which `kdp.hardware.NetInterface.ips` returns.

        Args:
            name: The interface's name.
            address: As ``192.0.2.5/24``.
        """
        with (self.host.root / ADDRESSES).open("a") as stream:
            stream.write(f"{name} {address}\n")

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the tree as a snapshot, for ``--snapshot`` and for other tests.

        Raises:
            OSError: It cannot be written.
        """
        paths = [path for path in self._below("/") if path.count("/") > 1 and not self.path(path).is_dir()]
        archive.write(capture(self.host, paths), Path(file))

    def _kept(self, why: str, path: str) -> Path:
        """Return where something is kept that has vanished or fails: beside the root, so that no plugin finds it."""
        return self.host.root.with_name(f".{self.host.root.name}.kept") / why / path[1:]

    def _vanished_as(self, host_path: str) -> str:
        """Return the directory that was vanished by a link: the link is gone with it, and is kept."""
        places = {place: path for path, moves in self._vanished.items() for place, _ in moves}
        return places[self.path(host_path)]

    def _edit(self, name: str, without: Iterable[str], *lines: str) -> None:
        """Replace the lines of some paths in a list at the top of the tree, at once."""
        file = self.host.root / name
        text = file.read_text()
        parsed = {**(parse_nodes(text) if name == NODES else parse_unreadable(text))}
        kept = [
            line
            for line in text.splitlines()
            if not any(line.startswith(f"{path} ") for path in {*without} & {*parsed})
        ]
        new = file.with_name(f".{name}.new")
        new.write_text("".join(f"{line}\n" for line in (*kept, *lines)))
        new.replace(file)

    def _said(self, path: str) -> str | None:
        return self.host.reading(path).value

    def _below(self, path: str) -> list[str]:
        top = self.path(path)
        root = str(self.host.root)
        return [
            os.path.join(place, name).removeprefix(root)
            for place, directories, files in os.walk(top)
            for name in (*directories, *files)
        ]

    def _links(self) -> list[str]:
        return [path for path in self._below("/") if self.path(path).is_symlink()]

    def _leads_into(self, link: str, path: str) -> bool:
        if link.startswith(f"{path}/"):
            return False  # goes with it
        place = self.path(link)
        target = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(place)))
        return target == path or target.startswith(f"{path}/")
