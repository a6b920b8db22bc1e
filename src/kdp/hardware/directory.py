"""`Directory`: a directory of sysfs or procfs with typed readers; `PciFunction` and `NetInterface`: two kinds of it.

They stand together because each leads to the others. `NodeFiles` is what they need of a node's files: `Host` is above.

A directory is a device, an entry of a class, a port, a set of error registers: whatever has attributes. A `Directory`
holds a path and no values: each reader reads anew, and one of a device that is gone answers with the reason.
"""

from __future__ import annotations

import logging
import posixpath
from functools import cache
from typing import TYPE_CHECKING, Literal, Protocol, final

import attrs

from ..model.devices import MAX_NUMA_NODE
from . import readings
from .pci import PciLink, function_path
from .resolving import Below

if TYPE_CHECKING:
    import os

    from .readings import Reading

logger = logging.getLogger(__name__)

TOP = "/sys/devices"


class NodeFiles(Protocol):
    """What readers of sysfs need of a node's files, and what `Directory.host` gives; `Host` has it."""

    @property
    def is_real(self) -> bool:
        """See `Host.is_real`."""
        ...

    def inside(self, host_path: str) -> str:
        """See `Host.inside`."""
        ...

    def resolve(self, host_path: str | os.PathLike[str]) -> str:
        """See `Host.resolve`."""
        ...

    def is_directory(self, host_path: str | os.PathLike[str]) -> bool:
        """See `Host.is_directory`."""
        ...

    def glob(self, pattern: str) -> list[str]:
        """See `Host.glob`."""
        ...

    def escape(self, host_path: str) -> str:
        """See `Host.escape`."""
        ...

    def read_bytes(self, host_path: str | os.PathLike[str]) -> bytes:
        """See `Host.read_bytes`."""
        ...

    def reading(self, host_path: str) -> Reading[str]:
        """See `Host.reading`."""
        ...

    def read_link(self, host_path: str | os.PathLike[str]) -> str | None:
        """See `Host.read_link`."""
        ...

    def look(self, host_path: str | os.PathLike[str]) -> tuple[int, int] | None:
        """See `Host.look`."""
        ...

    def device_number(self, host_path: str | os.PathLike[str]) -> tuple[int, int] | None:
        """See `Host.device_number`."""
        ...

    def node_of_number(self, kind: Literal["char", "block"], major: int, minor: int) -> str | None:
        """See `Host.node_of_number`."""
        ...

    def directory(self, host_path: str | os.PathLike[str]) -> Directory:
        """See `Host.directory`."""
        ...

    def directories(self, pattern: str) -> list[Directory]:
        """See `Host.directories`."""
        ...

    def directory_of_node(self, host_path: str | os.PathLike[str]) -> Directory | None:
        """See `Host.directory_of_node`."""
        ...

    def pci_function(self, address: str) -> PciFunction | None:
        """See `Host.pci_function`."""
        ...

    def net_interface(self, name: str) -> NetInterface | None:
        """See `Host.net_interface`."""
        ...

    def ips_of(self, interface: NetInterface) -> tuple[str, ...]:
        """See `NetInterface.ips`."""
        ...

    def numa_nodes_of(self, directory: Directory) -> tuple[int, ...]:
        """See `Host.numa_nodes_of`."""
        ...


@attrs.frozen
class Directory:
    """A directory of the node. Make one with `Host.directory` or `Host.directories`. All methods may block.

    Attributes:
        host: The node's files.
        path: Its path on the node, links followed; it is taken for granted that none is put into it later.
    """

    host: NodeFiles = attrs.field(repr=False)
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
        """Read lines ``NAME=value``, as of the attribute ``uevent``; empty where it cannot be read."""
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
        return _pci_function(self, links=4)

    @property
    def numa_node(self) -> int | None:
        """The memory node that it names itself; None: unknown. Node 0 is a node.

        Unknown is what the file ``numa_node`` says with -1, a number that the topology manager's masks have no bit for,
        and a node that is not online: firmware may name one that the machine has not, and a kubelet with the policy
        single-numa-node would admit no pod with the device.
        """
        node = self.integer("numa_node").value
        if node is None or not 0 <= node <= MAX_NUMA_NODE:
            return None
        online = self.host.directory("/sys/devices/system/node").numbers("online").value
        if online is None or node in online:
            return node
        _say_offline(self.path, node, online)
        return None

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """The memory nodes that it is near to; see `Host.numa_nodes`."""
        return self.host.numa_nodes_of(self)


@cache
def _say_offline(path: str, node: int, online: tuple[int, ...]) -> None:
    """Say it once: the firmware does not change its mind."""
    logger.warning(
        "%s/numa_node is %s, and that NUMA node is not online (online: %s): the kubelet gets no NUMA node of this "
        "device; look for an update of the machine's firmware",
        path,
        node,
        ", ".join(map(str, online)),
    )


def parse_number(text: str) -> tuple[int, int]:
    """Return major and minor number of ``231:192``."""
    major, _, minor = text.partition(":")
    return int(major), int(minor)


@final
@attrs.frozen
class PciFunction(Directory):
    """A PCI function. A property is None where sysfs does not tell; `Directory.text` and its like tell the reason."""

    @property
    def address(self) -> str:
        """As ``0000:3b:00.0``: domain, bus, device, function."""
        return self.name

    @property
    def vendor(self) -> int | None:
        """The vendor's id, as 0x10de."""
        return self.hexadecimal("vendor").value

    @property
    def device(self) -> int | None:
        """The device's id, which the vendor gave."""
        return self.hexadecimal("device").value

    @property
    def subsystem_vendor(self) -> int | None:
        """The id of the board's maker."""
        return self.hexadecimal("subsystem_vendor").value

    @property
    def subsystem_device(self) -> int | None:
        """The board's id, which its maker gave."""
        return self.hexadecimal("subsystem_device").value

    @property
    def class_code(self) -> int | None:
        """Class, subclass and programming interface in 24 bits: 0x030200 is a 3D controller, 0x020700 InfiniBand."""
        return self.hexadecimal("class").value

    @property
    def revision(self) -> int | None:
        """The revision."""
        return self.hexadecimal("revision").value

    @property
    def pcie_root(self) -> str | None:
        """The root complex above it, as ``pci0000:3a``: functions below it reach each other without a CPU."""
        root = self.path.removeprefix("/sys/devices/").partition("/")[0]
        return root if root.startswith("pci") else None

    @property
    def local_cpus(self) -> tuple[int, ...] | None:
        """The processors that are near to it."""
        return self.numbers("local_cpulist").value

    @property
    def link_now(self) -> PciLink:
        """The link as it is; a card at rest may have slowed it down."""
        return self._link("current")

    @property
    def link_max(self) -> PciLink:
        """The best link that it can do."""
        return self._link("max")

    def _link(self, which: str) -> PciLink:
        # "8.0 GT/s PCIe", "2.5 GT/s", "Unknown"; a width of 0 or 255 is that of no link.
        speed = self.text(f"{which}_link_speed").parsed(lambda text: float(text.split()[0]), "a speed").value
        width = self.integer(f"{which}_link_width").value
        return PciLink(speed, width if width is not None and 0 < width <= 64 else None)

    @property
    def iommu_group(self) -> int | None:
        """The number of its IOMMU group; None: it is in none."""
        name = self.link("iommu_group")
        return int(name) if name is not None and name.isdigit() else None

    @property
    def vfio_node(self) -> str | None:
        """``/dev/vfio/N`` of its IOMMU group; None: it is in none. It is there while vfio-pci is the driver."""
        group = self.iommu_group
        return None if group is None else f"/dev/vfio/{group}"

    @property
    def vfio_cdev(self) -> str | None:
        """Its own node for IOMMUFD, ``/dev/vfio/devices/vfioN``; None if it has none."""
        found = self.children("vfio-dev/*")
        return f"/dev/vfio/devices/{found[0].name}" if found else None

    @property
    def is_vfio(self) -> bool:
        """Whether its driver hands it to programs through VFIO: vfio-pci, or a vendor's own, as mlx5_vfio_pci."""
        return "vfio" in (self.driver or "").replace("-", "_").split("_")

    @property
    def net_names(self) -> list[str]:
        """The names of its network interfaces."""
        return [entry.name for entry in self.children("net/*")]

    # -- SR-IOV --------------------------------------------------------------------------------------------------------

    @property
    def physical_function(self) -> PciFunction | None:
        """The physical function of a virtual one; None: it is no virtual function."""
        address = self.link("physfn")
        return None if address is None else self.host.pci_function(address)

    @property
    def virtual_functions(self) -> dict[int, PciFunction]:
        """The virtual functions that are there now, by their number (``virtfn0``)."""
        found: dict[int, PciFunction] = {}
        for entry in self.host.glob(f"{self.host.escape(self.path)}/virtfn*"):
            number = entry.rpartition("virtfn")[2]
            address = self.link(f"virtfn{number}")
            function = self.host.pci_function(address) if address is not None else None
            if function is not None and number.isdigit():
                found[int(number)] = function
        return dict(sorted(found.items()))

    @property
    def virtual_function_limit(self) -> int:
        """How many virtual functions it could have (``sriov_totalvfs``); 0: it has no SR-IOV."""
        return self.integer("sriov_totalvfs").or_else(0)


@final
@attrs.frozen
class NetInterface(Directory):
    """A network interface. A property is None if sysfs has none; an interface that is down has no speed and carrier.

    ``/sys/class/net`` shows the interfaces of the network namespace in which sysfs was mounted: a pod without the
    node's network (hostNetwork) sees its own only. Source of the names: the kernel's
    Documentation/ABI/testing/sysfs-class-net.
    """

    @property
    def index(self) -> int | None:
        """Its number."""
        return self.integer("ifindex").value

    @property
    def address(self) -> str:
        """Its hardware address, ``52:54:00:12:34:56``; empty: it has none."""
        return self.text("address").or_else("")

    @property
    def ips(self) -> tuple[str, ...]:
        """Its addresses that others can reach, as ``192.0.2.5/24``; none also where nobody tells."""
        return self.host.ips_of(self)

    @property
    def state(self) -> str:
        """``up``, ``down``, ``unknown``, ``dormant``, ``lowerlayerdown``, ``notpresent``, as RFC 2863 names them."""
        return self.text("operstate").or_else("unknown")

    @property
    def carrier(self) -> bool | None:
        """Whether there is a signal; None: unknown, because the interface is set down."""
        return self.flag("carrier").value

    @property
    def mtu(self) -> int | None:
        """The largest packet, in bytes."""
        return self.integer("mtu").value

    @property
    def speed(self) -> int | None:
        """In 10^6 bits a second; None: unknown, or it has none."""
        speed = self.integer("speed").value
        return speed if speed is not None and speed > 0 else None

    @property
    def link_type(self) -> int | None:
        """ARPHRD number: 1 is Ethernet, 32 InfiniBand, 772 loopback."""
        return self.integer("type").value

    @property
    def lower(self) -> list[str]:
        """The names of the interfaces below it: of a VLAN, a macvtap or a bond those that it uses."""
        pattern = f"{self.host.escape(self.path)}/lower_*"
        return [entry.rpartition("/lower_")[2] for entry in self.host.glob(pattern)]


def _pci_function(directory: Directory, *, links: int) -> PciFunction | None:
    """See `Directory.pci`; so many links ``device`` are followed, in case they form a circle."""
    path = function_path(directory.path)
    if path is not None:
        return PciFunction(directory.host, path)
    device = directory.child("device")
    return _pci_function(device, links=links - 1) if links and device.exists else None
