"""Taking a snapshot: what to look at, and looking at it.

`RecordingHost` is a `Host` that remembers what was asked of it, so that a snapshot holds what a backend reads;
`GENERIC` is what a snapshot holds when nobody says what is needed. `capture` looks at each path through a `Host`: of a
real node, of a mounted root, or of another snapshot.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
import stat
import threading
from typing import TYPE_CHECKING, Any, TypeVar, cast, final

import attrs
from typing_extensions import override

from .fake_nodes import NodeEntry
from .host import Host
from .resolving import MAX_LINKS
from .snapshot.archive import FileEntry, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .directory import Directory

_Method = TypeVar("_Method", bound="Callable[..., Any]")

GENERIC = (
    "/sys/bus/pci/devices/*",
    "/sys/class/net/*",
    "/sys/class/infiniband/*",
    "/sys/class/infiniband_verbs/*",
    "/sys/class/infiniband_mad/*",
    "/sys/class/fpga_region/*",
    "/sys/class/fpga_manager/*",
    "/sys/class/fpga_bridge/*",
    "/sys/class/drm/*",
    "/sys/class/accel/*",
    "/sys/class/misc/*",
    "/sys/class/vfio/*",
    "/sys/bus/auxiliary/devices/*",
    "/sys/kernel/iommu_groups/*/devices/*",
    "/sys/devices/system/node/node*/cpulist",
    "/sys/devices/system/node/online",
    "/proc/driver/nvidia/version",
    "/proc/driver/nvidia-caps/*",
)
"""What a snapshot without a class holds: these, what lies below those that are devices, and the device nodes."""

MAX_FILE = 256 * 1024
"""The largest file that is taken, in bytes: NVIDIA's /proc/driver/nvidia-caps/mig-minors has 109,408."""

MAX_DEPTH = 8
"""So deep below a device its attributes are taken: a port's tables, an FPGA's error registers."""

_TABLE_ENTRIES = 8
"""Of a port's tables of GIDs and keys so many entries are taken: there are 1024, and most of them fail."""

_NOT_TAKEN = {"power", "queues", "statistics", "counters", "hw_counters", "msi_irqs", "uevent_seqnum", "trace"}
"""Directories of counters and of the kernel's own concerns."""

_NOT_READ = {"config", "rom", "vpd", "remove", "rescan", "reset", "crash", "autosuspend_delay_ms"}
"""Files that do something when read, take long, or hold what no backend should need."""

_DULL = ("/dev/tty", "/dev/pts/", "/dev/vcs", "/dev/ram", "/dev/loop")
"""Device nodes that every machine has by the dozen."""

_BAR = re.compile(r"resource[0-9]+(_wc)?")


def _noted(method: _Method) -> _Method:
    """Return a method of `Host` that first remembers the path that it is asked about."""

    @functools.wraps(method)
    def noted(self: RecordingHost, host_path: str) -> Any:
        self.note(host_path)
        return method(self, host_path)

    return cast("_Method", noted)


@final
@attrs.frozen
class RecordingHost(Host):
    """A `Host` that remembers each path that it was asked about.

    Attributes:
        seen: The paths, in their order.
    """

    seen: dict[str, None] = attrs.field(init=False, factory=dict[str, None], eq=False, repr=False)
    _lock: Any = attrs.field(init=False, factory=threading.Lock, eq=False, repr=False)

    def note(self, *paths: str | os.PathLike[str]) -> None:
        """Remember paths."""
        with self._lock:
            self.seen.update(dict.fromkeys("/" + os.fspath(path).lstrip("/") for path in paths))

    path = _noted(Host.path)
    resolve = _noted(Host.resolve)
    look = _noted(Host.look)
    read_bytes = _noted(Host.read_bytes)
    read_link = _noted(Host.read_link)
    device_node = _noted(Host.device_node)

    @override
    def glob(self, pattern: str | os.PathLike[str]) -> list[str]:
        found = super().glob(pattern)
        self.note(*found)
        return found

    @override
    def directories(self, pattern: str | os.PathLike[str]) -> list[Directory]:
        self.glob(pattern)
        return super().directories(pattern)


def _listed(host: Host, pattern: str) -> list[str]:
    """Return what matches a pattern; a snapshot leaves out what its maker may not read."""
    try:
        return host.glob(pattern)
    except PermissionError:
        return []


def generic_paths(host: Host) -> list[str]:
    """Return what a snapshot without a class holds of this node."""
    found = [path for pattern in GENERIC for path in _listed(host, pattern)]
    devices = [host.resolve(path) for path in found if path.startswith("/sys/") and host.is_directory(path)]
    nodes = [path for path in host.device_nodes() if not path.startswith(_DULL)]
    return [*found, *(path for device in dict.fromkeys(devices) for path in _below(host, device, MAX_DEPTH)), *nodes]


def _below(host: Host, directory: str, depth: int) -> Iterable[str]:
    table = posixpath.basename(directory)
    in_table = table in ("gids", "pkeys") or "/gid_attrs/" in directory
    for path in _listed(host, f"{host.escape(directory)}/*"):
        name = posixpath.basename(path)
        if name in _NOT_TAKEN or (in_table and name.isdigit() and int(name) >= _TABLE_ENTRIES):
            continue
        yield path
        # A function below a bridge is a device of its own.
        is_link = host.read_link(path) is not None
        if depth and not is_link and name.count(":") < 2 and host.is_directory(path):
            yield from _below(host, path, depth - 1)


def siblings(host: Host, paths: Iterable[str]) -> list[str]:
    """Return the attributes beside those that were read in sysfs: the next version of a backend may read them."""
    directories = {host.directory(posixpath.dirname(path)).path for path in paths if path.startswith("/sys/")}
    return [
        path
        for directory in sorted(directories)
        if directory.startswith("/sys/devices/") and directory.count("/") > 3
        for path in _listed(host, f"{host.escape(directory)}/*")
        if not host.is_directory(path)
    ]


def capture(host: Host, paths: Iterable[str], *, names_only: Iterable[str] = ()) -> Snapshot:
    """Look at each path and return the snapshot. Blocks; a driver may take its time with each attribute.

    Args:
        host: The node's files.
        paths: Paths of the node; links on the way and at the end come along, with what they lead to. What is not there
            is left out.
        names_only: Paths of which only that they are there matters: sources of mounts. Their files are empty.
    """
    taking = _Taking(host)
    for path in paths:
        taking.take(path, content=True)
    for path in names_only:
        taking.take(path, content=False)
    kernel = os.uname()
    taking.snapshot.kernel = f"{kernel.sysname} {kernel.release} {kernel.machine}"
    if not host.is_real and (recorded := host.reading("/KERNEL").value):
        taking.snapshot.kernel = recorded
    return taking.snapshot


class _Taking:
    def __init__(self, host: Host) -> None:
        self.snapshot = Snapshot()
        self._host = host

    def take(self, path: str, *, content: bool, links: int = 0) -> None:
        """Take one path: each link on the way as a link, and what is at its end."""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        place = ""
        for position, part in enumerate(parts):
            place = posixpath.dirname(place).rstrip("/") if part == ".." else f"{place}/{part}"
            target = self._host.read_link(place) if part != ".." else None
            if target is not None:
                above = posixpath.dirname(place)
                real = posixpath.join(above, target)
                is_relative = not target.startswith("/")
                self.snapshot.links[place] = (
                    target if is_relative else posixpath.relpath(posixpath.normpath(real), above)
                )
                if links < MAX_LINKS:
                    self.take("/".join([real, *parts[position + 1 :]]), content=content, links=links + 1)
                return
        self._end(place, content=content)

    def _end(self, path: str, *, content: bool) -> None:
        snapshot, host = self.snapshot, self._host
        if any(path in taken for taken in (snapshot.files, snapshot.unreadable, snapshot.nodes, snapshot.directories)):
            return
        status = host.look(path)
        if status is None:
            return
        mode, number = status
        if stat.S_ISDIR(mode):
            if path not in ("", "/"):
                snapshot.directories.add(path)
        elif stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            entry = NodeEntry(stat.S_ISBLK(mode), os.major(number), os.minor(number), stat.S_IMODE(mode))
            snapshot.nodes[path] = entry
        elif not content or (stat.S_ISREG(mode) and not mode & 0o444):
            snapshot.files[path] = FileEntry(b"", stat.S_IMODE(mode))
        elif stat.S_ISREG(mode) or not host.is_real:
            self._read(path, stat.S_IMODE(mode))

    def _read(self, path: str, mode: int) -> None:
        name = posixpath.basename(path)
        if self._host.is_real and (name in _NOT_READ or _BAR.fullmatch(name)):
            self.snapshot.unreadable[path] = "not taken"
            return
        try:
            data = self._host.read_bytes(path)
        except OSError as error:
            self.snapshot.unreadable[path] = error.strerror or os.strerror(error.errno or 5)
            return
        if b"\0" in data.rstrip(b"\0\n"):
            self.snapshot.unreadable[path] = f"binary, {len(data)} bytes"
        elif len(data) > MAX_FILE:
            self.snapshot.unreadable[path] = f"too large, {len(data)} bytes"
        else:
            self.snapshot.files[path] = FileEntry(data, mode)
