"""`Directory`: a directory of sysfs or procfs with typed readers for its attributes, and the ways from it to others.

It is a device, an entry of a class, a port, a set of error registers: whatever has attributes. A `Directory` holds a
path and no values: each reader reads anew, and one of a device that is gone answers with the reason.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

import attrs

from . import readings
from .host import Host
from .resolving import Below

if TYPE_CHECKING:
    from .pci import PciFunction
    from .readings import Reading

__all__ = ["Directory"]

TOP = "/sys/devices"


@attrs.frozen
class Directory:
    """A directory of the node. Make one with `Host.directory` or `Host.directories`. All methods may block.

    Attributes:
        host: The node's files.
        path: Its path on the node, links followed; it is taken for granted that none is put into it later.
    """

    host: Host = attrs.field(repr=False)
    path: str

    @property
    def name(self) -> str:
        """The last part of its path: ``mlx5_0``, ``0000:3b:00.0``."""
        return posixpath.basename(self.path)

    # -- attributes ----------------------------------------------------------------------------------------------------

    def text(self, name: str) -> Reading[str]:
        """Read an attribute as text, without the line break; an empty one is ``""``.

        Args:
            name: Its name, or its path below this directory: ``errors/first_error``.
        """
        path = Below(self.path, name)
        return readings.read(str(path), lambda: self.host.read_bytes(path))

    def integer(self, name: str) -> Reading[int]:
        """Read a number: decimal, or hexadecimal where it says so with ``0x``."""
        return self.text(name).parsed(readings.parse_integer, "a number")

    def hexadecimal(self, name: str) -> Reading[int]:
        """Read a hexadecimal number, with ``0x`` in front (``0x10de``) or without."""
        return self.text(name).parsed(readings.parse_hexadecimal, "a hexadecimal number")

    def flag(self, name: str) -> Reading[bool]:
        """Read a truth value: ``1`` or ``0``, ``Y`` or ``N``, ``on`` or ``off``, ``enabled`` or ``disabled``."""
        return self.text(name).parsed(readings.parse_flag, "1 or 0, Y or N")

    def words(self, name: str) -> Reading[tuple[str, ...]]:
        """Read a list of words; the list of an empty attribute has none."""
        text = self.text(name)
        return readings.Reading(text.path, ()) if text.value == "" else text.parsed(readings.parse_words, "words")

    def numbers(self, name: str) -> Reading[tuple[int, ...]]:
        """Read a list of numbers as the kernel writes it, as that of processors: ``0-3,8``."""
        return self.text(name).parsed(readings.parse_numbers, "a list of numbers such as 0-3,8")

    def properties(self, name: str = "uevent") -> dict[str, str]:
        """Read lines ``NAME=value``, as of the attribute ``uevent``; nothing where it cannot be read."""
        lines = self.text(name).or_else("").splitlines()
        return {key: value for key, equals, value in (line.partition("=") for line in lines) if equals}

    # -- the ways to others --------------------------------------------------------------------------------------------

    def link(self, name: str) -> str | None:
        """Return the last part of what a link leads to, be it there or not: of ``driver`` the driver's name."""
        target = self.host.read_link(Below(self.path, name))
        return None if target is None else posixpath.basename(target.rstrip("/"))

    def child(self, name: str) -> Directory:
        """Return a directory below this one, links followed, be it there or not."""
        return self.host.directory(Below(self.path, name))

    def children(self, pattern: str = "*") -> list[Directory]:
        """Return the directories below this one whose names match a shell pattern, 2 before 10, links followed."""
        above = self.host.escape(self.path)
        return self.host.directories(Below(above, pattern) if above == self.path else f"{above}/{pattern}")

    @property
    def parent(self) -> Directory | None:
        """The directory above it; None where the devices of sysfs, or the file system, end."""
        above = posixpath.dirname(self.path)
        if not above.startswith(f"{TOP}/") and (above == "/" or self.path.startswith(f"{TOP}/")):
            return None
        return Directory(self.host, above)

    @property
    def parents(self) -> list[Directory]:
        """The directories above it, the nearest first."""
        found: list[Directory] = []
        above = self.parent
        while above is not None:
            found.append(above)
            above = above.parent
        return found

    @property
    def exists(self) -> bool:
        """Whether it is (still) there."""
        return self.host.is_directory(Below(*posixpath.split(self.path)))

    # -- what every device has -----------------------------------------------------------------------------------------

    @property
    def driver(self) -> str | None:
        """The name of the driver that it is bound to; None: to none."""
        return self.link("driver")

    @property
    def subsystem(self) -> str | None:
        """The name of its bus or class: ``pci``, ``net``, ``infiniband_verbs``."""
        return self.link("subsystem")

    @property
    def number(self) -> tuple[int, int] | None:
        """Major and minor number of its device node; None: it has none."""
        return self.text("dev").parsed(parse_number, "MAJOR:MINOR").value

    @property
    def node(self) -> str | None:
        """The path of its device node on the node, ``/dev/infiniband/uverbs0``; None: it has none, or nobody knows.

        The kernel names it in ``uevent``. Whether it is there is another question: see `Host.node_fault`.
        """
        name = self.properties().get("DEVNAME")
        if name:
            return f"/dev/{name.removeprefix('/dev/')}"
        number = self.number
        if number is None:
            return None
        return self.host.node_of_number("block" if self.subsystem == "block" else "char", *number)

    @property
    def pci(self) -> PciFunction | None:
        """The PCI function that it is, is part of, or points to with its link ``device``; None: none."""
        from .pci import of_directory

        return of_directory(self)

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """The memory nodes that it is near to; see `Host.numa_nodes`."""
        from .numa import of_directory

        return of_directory(self)


def parse_number(text: str) -> tuple[int, int]:
    """Return major and minor number of ``231:192``."""
    major, _, minor = text.partition(":")
    return int(major), int(minor)
