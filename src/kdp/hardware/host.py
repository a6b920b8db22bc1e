"""`Host`: the node's file system as this process sees it.

In a DaemonSet the node's ``/dev`` may be mounted at ``/host/dev``; in a test it is a directory; on a laptop it is a
snapshot that was taken on another node. A backend speaks in paths *of the node* and asks `Host` about them; links are
followed inside the root, never out of it.

Rule: questions about what may not be there (`Host.read_link`, `Host.pci_function`, `Host.glob`) answer None or an empty
result; only `Host.read_bytes` raises, and the readers of `Directory` turn that into a `Reading` with the reason.

The methods import the readers: a plugin that only looks at device nodes starts 10 ms sooner without them.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs

from ..errors import InvalidValueError
from ..startup import shown
from ..storage.reading import check_regular, read_start
from .patterns import absolute, check_readable, in_one_directory, matching, names
from .resolving import READ_ONLY, Below, open_entry, resolve

if TYPE_CHECKING:
    from .directory import Directory, NetInterface, NodeFiles, PciFunction
    from .fake_nodes import StandIns  # noqa: TC004 - attrs reads no annotation
    from .inotify import PathWatch
    from .iommu import IommuGroup
    from .readings import Reading

MAX_BYTES = 1 << 20
"""The most that is read of one file: an attribute has a page (4 KiB), what drivers put into /proc somewhat more."""

_SLASH = Path("/")


def _root(value: str | os.PathLike[str]) -> Path:
    root = Path(os.path.abspath(value))
    return _SLASH if root == _SLASH else root  # so that `is` tells, which costs nothing in a request


def _stand_ins_of(root: Path) -> StandIns | None:
    if root is _SLASH:
        return None
    from .fake_nodes import StandIns  # late: no node has any

    return StandIns.of(root)


@attrs.frozen
class Host:
    """The node's files below a root. All methods block (they stat), and may be called from any thread.

    Attributes:
        root: Where the node's ``/`` is for this process; default ``/``. An unpacked snapshot is a root, too: its device
            nodes and its unreadable attributes are then those of the node that it was taken on.
    """

    __repr__ = shown

    root: Path = attrs.field(default=_SLASH, converter=_root)
    _stand_ins: StandIns | None = attrs.field(
        init=False, eq=False, repr=False, default=attrs.Factory(lambda host: _stand_ins_of(host.root), takes_self=True)
    )

    @classmethod
    def of_snapshot(cls, file: str | os.PathLike[str]) -> Host:
        """Return the node that a snapshot was taken on, as ``kdp snapshot`` wrote it.

        The archive is unpacked into a temporary directory, which is removed when the last `Host` on it is gone or the
        process ends in order.

        Raises:
            ConfigurationError: The file cannot be read, is not a snapshot, is cut off, of a newer format, or not safe.
        """
        import weakref

        from .snapshot.archive import remove_unpacked, unpack_temporarily

        host = cls(unpack_temporarily(file))
        weakref.finalize(host, remove_unpacked, host.root)
        return host

    @property
    def is_real(self) -> bool:
        """Whether these are a real node's files, not a snapshot's or a test's; only then the kernel sends events."""
        return self._stand_ins is None

    def path(self, host_path: str | os.PathLike[str]) -> Path:
        """Return where this process finds a path of the node. Links on the way are not looked at: see `resolve`."""
        return Path(self.inside(os.fspath(host_path)))

    def inside(self, host_path: str) -> str:
        """Return what `path` does, as text."""
        return host_path if self.root is _SLASH else f"{self.root}/{host_path.lstrip('/')}"

    def resolve(self, host_path: str | os.PathLike[str]) -> str:
        """Return the path of the node with all links followed inside the root; missing parts stay as they are.

        Raises:
            OSError: The links form a loop (ELOOP), or no file can have this name: it has a NUL (EINVAL).
        """
        if "\0" in os.fspath(host_path):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), host_path)
        return resolve("" if self.root is _SLASH else str(self.root), os.fspath(host_path))

    def look(self, host_path: str | os.PathLike[str]) -> tuple[int, int] | None:
        """Return mode and device number of what is there, as stat(2) has them, links followed; None: it is missing."""
        try:
            return self._status(os.fspath(host_path) if self.root is _SLASH else self.resolve(host_path))
        except (OSError, ValueError):  # what sysfs says may have a NUL in it
            return None

    def _status(self, path: str) -> tuple[int, int]:
        """Return what `look` does; below a root the path has no links."""
        found = os.stat(self.inside(path))
        if self._stand_ins is None:
            return found.st_mode, found.st_rdev
        if (node := self._stand_ins.nodes.get(path)) is not None:
            return node.file_type | node.mode, os.makedev(node.major, node.minor)
        return self._stand_ins.mode_on_node(path, found.st_mode), found.st_rdev

    # -- what is there -------------------------------------------------------------------------------------------------

    def exists(self, host_path: str | os.PathLike[str]) -> bool:
        """Return whether something is there, links followed."""
        return self.look(host_path) is not None

    def is_directory(self, host_path: str | os.PathLike[str]) -> bool:
        """Return whether a directory is there, links followed."""
        found = self.look(host_path)
        return found is not None and stat.S_ISDIR(found[0])

    def glob(self, pattern: str | os.PathLike[str]) -> list[str]:
        """Return the node's paths that match a shell pattern, sorted by their text; ``**`` matches any depth.

        A link that leads nowhere is a path, too. `escape` makes a plain name of one with brackets in it.

        Raises:
            InvalidValueError: The pattern is relative.
            PermissionError: This process may not read the directory, so that it cannot know what is there.
        """
        pattern = absolute(pattern)
        if "\0" in pattern:
            return []
        if self.root is not _SLASH:
            return sorted(matching(self, pattern))
        found = sorted(glob.glob(pattern, recursive=True))
        if not found or "**" in pattern:  # which finds the directory itself
            check_readable(pattern)
        return found

    def watch(self, pattern: str | os.PathLike[str]) -> PathWatch:
        """Return what waits for changes of the node's paths that match a shell pattern, be they there yet or not.

        ::

            async def watch(self, report: kdp.Reporter) -> None:
                async with self.host.watch("/run/acme/card*/state") as paths:
                    while True:
                        await paths.changes()
                        report.rescan()

        A path has changed when it came, went, was replaced, or was written to. Directories on the way may come and go
        as well. See `PathWatch`.

        Raises:
            InvalidValueError: The pattern is relative, or has ``**``.
        """
        from .inotify import PathWatch  # late: few backends watch files

        return PathWatch(self, absolute(pattern))

    def escape(self, host_path: str) -> str:
        """Return the pattern for `glob` that matches only this path."""
        return glob.escape(host_path)

    # -- files ---------------------------------------------------------------------------------------------------------

    def read_bytes(self, host_path: str | os.PathLike[str]) -> bytes:
        """Return what a regular file says, 1 MiB at most. Never waits for a writer, but a driver may take its time.

        Raises:
            InvalidValueError: The path is relative.
            OSError: The file is absent, is a FIFO or a device node, or reading it fails. sysfs answers with EINVAL,
                ENODEV, EOPNOTSUPP, and more.
        """
        path = absolute(host_path)
        if self.root is _SLASH and "\0" not in path:
            return _read(os.open(path, READ_ONLY))
        descriptor = open_entry(str(self.root), path)
        if descriptor is None:
            path = self.resolve(path)
            self._check_readable(path)
            return _read(os.open(self.inside(path), READ_ONLY))
        try:
            self._check_readable(f"/{path.lstrip('/')}", descriptor)
        except OSError:
            os.close(descriptor)
            raise
        return _read(descriptor)

    def _check_readable(self, path: str, descriptor: int | None = None) -> None:
        """Raise the error that reading causes on the node; in a tree, the owner may read what the kernel refuses."""
        if self._stand_ins is None:
            return
        self._stand_ins.check_readable(path)
        found = os.stat(self.inside(path) if descriptor is None else descriptor)
        mode = self._stand_ins.mode_on_node(path, found.st_mode)
        if stat.S_ISREG(mode) and not mode & 0o444:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def reading(self, host_path: str | os.PathLike[str]) -> Reading[str]:
        """Return what a file says as text, or the reason why it cannot be read; see `Directory` for attributes.

        Raises:
            InvalidValueError: The path is relative.
        """
        from .readings import read

        path = absolute(host_path)
        return read(path, lambda: self.read_bytes(path))

    def read_link(self, host_path: str | os.PathLike[str]) -> str | None:
        """Return the target of a link as it is written, be it there or not; None: there is no link."""
        directory, _, name = os.fspath(host_path).rstrip("/").rpartition("/")
        try:
            place = host_path if self.root is _SLASH else self.inside(f"{self.resolve(directory or '/')}/{name}")
            return os.readlink(place)
        except (OSError, ValueError):
            return None

    # -- device nodes --------------------------------------------------------------------------------------------------

    def device_type(self, host_path: str | os.PathLike[str]) -> Literal["char", "block"] | None:
        """Return what kind of device node is there, links followed; None: nothing, or no device."""
        found = self.look(host_path)
        if found is None:
            return None
        return "char" if stat.S_ISCHR(found[0]) else "block" if stat.S_ISBLK(found[0]) else None

    def device_number(self, host_path: str | os.PathLike[str]) -> tuple[int, int] | None:
        """Return major and minor number of a device node, links followed; None: nothing, or no device."""
        found = self.look(host_path)
        if found is None or not (stat.S_ISCHR(found[0]) or stat.S_ISBLK(found[0])):
            return None
        return os.major(found[1]), os.minor(found[1])

    def device_node(self, host_path: str) -> str:
        """Return the path of a device node itself: a link is followed, one lstat(2) is enough where it is none.

        Raises:
            InvalidValueError: Nothing is there, or it is no device.
        """
        path = host_path
        try:
            mode = os.lstat(path).st_mode if self.root is _SLASH else stat.S_IFLNK
            if stat.S_ISLNK(mode):  # below a root, even a directory on the way may be a link that leads out of it
                path = self.resolve(host_path)
                mode, _ = self._status(path)
        except (OSError, ValueError):
            raise InvalidValueError(f"device node {host_path} is gone{self._not_mounted(host_path)}") from None
        if not stat.S_ISCHR(mode) and not stat.S_ISBLK(mode):
            raise InvalidValueError(f"{host_path} is no device node")
        return path

    def node_fault(self, host_path: str) -> str | None:
        """Return what is wrong with a device node, as a sentence; None: it is there and is a device."""
        try:
            self.device_node(host_path)
        except InvalidValueError as error:
            return str(error)
        return None

    def mount_fault(self, host_path: str) -> str | None:
        """Return what is wrong with the source of a mount, as a sentence; None: it is there."""
        if self.exists(host_path):
            return None
        return f"mount source {host_path} does not exist{self._not_mounted(host_path)}"

    def _not_mounted(self, host_path: str) -> str:
        """Return the cause if the plugin's container does not see a whole directory of the node, such as ``/dev``."""
        top = f"/{host_path.lstrip('/').partition('/')[0]}"
        if top == host_path or self.root is _SLASH or os.path.lexists(self.inside(top)):
            return ""
        return f": the node's {top} is not mounted at {self.inside(top)}; kdp manifests mounts what needs() declares"

    def node_of_number(self, kind: Literal["char", "block"], major: int, minor: int) -> str | None:
        """Return the path below ``/dev`` of the device node with this number; None: there is none.

        Looks at every node, so it is for where `Directory.node` does not know: a driver that does not tell sysfs.
        """
        wanted = (major, minor)
        found = (path for path in self.device_nodes() if self.device_number(path) == wanted)
        return next((path for path in found if self.device_type(path) == kind), None)

    def device_nodes(self) -> list[str]:
        """Return the paths of all device nodes below ``/dev``, sorted; links to nodes are left out."""
        try:
            top = self.inside(self.resolve("/dev"))
        except OSError:
            return []
        names = (os.path.join(place, name) for place, _, files in os.walk(top) for name in files)
        paths = (f"/dev{name.removeprefix(top)}" for name in names if not os.path.islink(name))
        return sorted(path for path in paths if self.device_type(path) is not None)

    def things_of_node(self, host_path: str) -> tuple[str, ...]:
        """Return the hardware that a container reaches by a device node, links followed; empty if there is no node.

        Two nodes with one thing in common are one device. The things are the node's kind and number, ``c 188:0``, and
        of a node of VFIO also the IOMMU group, ``IOMMU group 41``.
        """
        from .things import of_node

        return of_node(self, host_path)

    def vfio_group(self, host_path: str) -> int | None:
        """Return the number of the IOMMU group that a node of VFIO opens; None if the node opens no group.

        Such a node belongs to a group, ``/dev/vfio/41``, or to one function, ``/dev/vfio/devices/vfio0``.
        """
        from .things import vfio_group

        return vfio_group(self, host_path)

    # -- directories of sysfs and procfs -------------------------------------------------------------------------------

    def directory(self, host_path: str | os.PathLike[str]) -> Directory:
        """Return a directory with typed readers for its attributes, links followed.

        It need not be there: its attributes are absent then, each with the reason, and `Directory.exists` is false.

        Raises:
            InvalidValueError: The path is relative.
        """
        from .directory import Directory

        path = absolute(host_path)
        try:
            return Directory(self, self.resolve(path))
        except OSError:  # a loop of links, as each reader will tell
            return Directory(self, path)

    def directories(self, pattern: str | os.PathLike[str]) -> list[Directory]:
        """Return directories by shell pattern, links followed, 2 before 10; a class is ``/sys/class/NAME/*``.

        Raises:
            InvalidValueError: The pattern is relative.
            PermissionError: This process may not read the directory, so that it cannot know what is there.
        """
        from ..model.names import natural
        from .directory import Directory

        pattern = absolute(pattern)
        one = in_one_directory(pattern)
        if one is None:
            places = (self.directory(path) for path in sorted(self.glob(pattern), key=natural))
            return [each for each in places if os.path.isdir(self.inside(each.path))]
        above = one[0] or "/"
        if not isinstance(pattern, Below):
            above = self.directory(above).path
        elif above != pattern.known:
            above = self.directory(Below(pattern.known, above.removeprefix(pattern.known).lstrip("/"))).path
        entries = names(self.inside(above), one[1])
        found: list[Directory] = []
        for name in sorted(entries, key=natural):
            if entries[name].is_symlink():
                each = self.directory(Below(above, name))
                if os.path.isdir(self.inside(each.path)):
                    found.append(each)
            elif entries[name].is_dir():  # what is no link is where it says
                found.append(Directory(self, f"{above.rstrip('/')}/{name}"))
        return found

    def class_devices(self, name: str) -> list[Directory]:
        """Return the entries of ``/sys/class/<name>``, 2 before 10; empty where no such driver is loaded."""
        return self.directories(f"/sys/class/{self.escape(name)}/*")

    def directory_of_node(self, host_path: str | os.PathLike[str]) -> Directory | None:
        """Return the sysfs directory of a device node, by its number; None: no device, or it has none."""
        kind, number = self.device_type(host_path), self.device_number(host_path)
        if kind is None or number is None:
            return None
        found = self.directory(f"/sys/dev/{kind}/{number[0]}:{number[1]}")
        return found if found.exists else None

    def pci_functions(
        self,
        *,
        vendor: int | None = None,
        device: int | None = None,
        class_code: int | None = None,
        driver: str | None = None,
    ) -> list[PciFunction]:
        """Return the PCI functions, by address, for which all of this holds.

        Args:
            vendor: The vendor's id, as 0x10de.
            device: The device's id.
            class_code: 0x03 is a class, 0x0302 class and subclass, 0x030200 the interface as well.
            driver: The driver that it is bound to.
        """
        from .directory import PciFunction
        from .pci import DEVICES, is_of_class

        found = [PciFunction(self, entry.path) for entry in self.directories(f"{DEVICES}/*")]
        wanted = [
            function
            for function in found
            if (vendor is None or function.vendor == vendor)
            and (device is None or function.device == device)
            and (class_code is None or is_of_class(function.class_code, class_code))
            and (driver is None or function.driver == driver)
        ]
        return sorted(wanted, key=lambda function: function.address)

    def pci_function(self, address: str) -> PciFunction | None:
        """Return a PCI function by its address, in the form of sysfs or of NVML; None: there is none."""
        from .directory import PciFunction
        from .pci import DEVICES, normal_address

        normal = normal_address(address)
        if normal is None or not (found := self.directory(f"{DEVICES}/{normal}")).exists:
            return None
        return PciFunction(self, found.path)

    def iommu_groups(self) -> dict[int, IommuGroup]:
        """Return the IOMMU groups of the PCI functions by their numbers; empty where the kernel uses no IOMMU."""
        from .iommu import read_groups

        return read_groups(self)

    def identity(self, host_path: str) -> str:
        """Return what stays with the hardware behind a device node or a sysfs directory when its number changes.

        It is for ``kdp.Device(identity=...)``: a USB device's serial number or port, the functions of a VFIO group, the
        path of a PCI function. Empty: nothing certain is known, or the node is named by a link, whose name stays.
        """
        from .identity import of_path

        return of_path(self, host_path)

    def net_interfaces(self) -> list[NetInterface]:
        """Return the network interfaces of this network namespace, 2 before 10."""
        from .directory import NetInterface

        return [NetInterface(self, entry.path) for entry in self.class_devices("net")]

    def net_interface(self, name: str) -> NetInterface | None:
        """Return a network interface; None: there is none of this name."""
        from .directory import NetInterface

        found = self.directory(f"/sys/class/net/{name}")
        return NetInterface(self, found.path) if found.exists else None

    def ips_of(self, interface: NetInterface) -> tuple[str, ...]:
        """See `NetInterface.ips`."""
        from .netlink import addresses_of

        return addresses_of(self, interface.name, interface.index)

    def numa_nodes(self, *host_paths: str) -> tuple[int, ...]:
        """Return the memory nodes that device nodes or sysfs directories are near to, sorted; empty: unknown.

        All or none: if one of them is unknown the answer is "unknown". It finds the way over parents, PCI, VFIO groups,
        the auxiliary bus and network interfaces: see `kdp.hardware.numa`. Leave out nodes that many devices share, such
        as ``/dev/infiniband/rdma_cm``: they have none.
        """
        from .numa import of_paths

        return of_paths(self, host_paths)

    def numa_nodes_of(self, directory: Directory) -> tuple[int, ...]:
        """See `Directory.numa_nodes`."""
        from .numa import of_directory

        return of_directory(directory)


def _read(descriptor: int) -> bytes:
    try:
        check_regular(descriptor)
        return read_start(descriptor, MAX_BYTES)
    finally:
        os.close(descriptor)


def boot_id_of(host: NodeFiles) -> str:
    """Return which boot of the node this is; what an earlier one set up in hardware is lost. "": it does not say."""
    path = "/proc/sys/kernel/random/boot_id"
    # A container that sees the node's files elsewhere has the kernel's word at its own place.
    for files in (host, Host()):
        try:
            return files.read_bytes(path).decode(errors="replace").strip()
        except OSError:
            continue
    return ""
