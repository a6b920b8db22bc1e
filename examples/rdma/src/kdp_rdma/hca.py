"""RDMA adapters (HCAs) as sysfs tells them: device nodes, memory node, health. Their ports are in `ports`.

What is odd about them, and why each is read as it is:

* The device node belongs to the adapter whose name stands in its ``ibdev``; numbers (``uverbs0``) are given anew after
  each unplug.
* An adapter that is removed while a process holds its node open stays in ``/sys/class/infiniband``, "4: ACTIVE",
  without nodes. So health is node and class entry and port state.
* Soft-RoCE has no ``device``; iWARP has no umad; newer kernels give RoCE no issm. What is not there is not missing.
* Two adapters may say one GUID: soft-RoCE makes it of the hardware address, which an interface shares with its VLANs.
  And a subfunction's may be zero, as a virtual function's.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import attrs

import kdp.hardware

from .ports import Port, read_ports

if TYPE_CHECKING:
    from collections.abc import Iterable

_LINK_TYPES = {1: "ether", 32: "infiniband"}

_GUID = re.compile(r"[0-9a-f]{16}")
_NUMBER = re.compile(r"[0-9]{1,9}")


@attrs.frozen(kw_only=True)
class HcaFacts:
    """What does not change while an adapter is there.

    Attributes:
        guid: Its node GUID, 16 digits; empty: none, or not told.
        address: Of its PCI function; None: it has none.
        is_virtual: Whether that is a virtual function.
        root: The PCI root complex, as ``pci0000:3a``; empty: none.
        vendor: PCI vendor id; empty: unknown.
        device: PCI device id; empty: unknown.
        driver: Of its PCI function; empty: none.
        firmware: Version of its firmware; empty: unknown.
        model: ``hca_type``; empty: unknown.
        board: ``board_id``; empty: unknown.
        numa_nodes: Memory nodes that it is near to.
    """

    guid: str
    address: str | None
    is_virtual: bool
    root: str
    vendor: str
    device: str
    driver: str
    firmware: str
    model: str
    board: str
    numa_nodes: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Hca:
    """An RDMA adapter.

    Attributes:
        identity: What is the same after a reboot, and no other adapter's.
        name: As ``mlx5_0``.
        path: Its directory in sysfs.
        facts: What does not change.
        interfaces: Names of its network interfaces.
        link_types: ``ether``, ``infiniband``.
        ports: Its ports.
        nodes: Its device nodes that are there: uverbs, umad, issm.
        missing: Its entries of sysfs whose device nodes are not there, as ``umad0``.
        fault: Why no container could open it, whatever its ports say; None: one could.
    """

    identity: str
    name: str
    path: str
    facts: HcaFacts
    interfaces: tuple[str, ...]
    link_types: frozenset[str]
    ports: tuple[Port, ...]
    nodes: tuple[str, ...]
    missing: tuple[str, ...]
    fault: str | None

    @property
    def hardware(self) -> str:
        """What stays with it: its identity, and its GUID unless that is it, or belongs to a virtual function."""
        guid = "" if self.facts.is_virtual else self.facts.guid
        return self.identity if guid in self.identity else f"{self.identity} {guid}"

    @property
    def port_paths(self) -> tuple[str, ...]:
        """The directories of its ports; empty: it has none, or which ones are its own is not known."""
        paths = tuple(port.path for port in self.ports)
        return paths if all(paths) else ()

    def unhealthy_because(self, *, all_ports: bool) -> str | None:
        """Return why it must not be handed out; None: it is healthy.

        Args:
            all_ports: Whether each port must be active, or one.
        """
        if self.fault is not None:
            return self.fault
        faults = [f"{self.name} {port.fault}" for port in self.ports if port.fault is not None]
        if not self.ports:
            return f"{self.name} has no ports"
        return "; ".join(faults) if faults and (all_ports or len(faults) == len(self.ports)) else None


@attrs.define
class Known:
    """What is known of the adapters from the last time.

    Attributes:
        facts: Facts by path.
        shared: GUIDs that two adapters said: neither has it for an id, also when the other is gone.
        last: What attributes of ports and interfaces said.
    """

    facts: dict[str, HcaFacts] = attrs.field(factory=dict[str, HcaFacts])
    shared: set[str] = attrs.field(factory=set[str])
    last: kdp.hardware.LastKnown = attrs.field(factory=kdp.hardware.LastKnown)


def read_hcas(host: kdp.hardware.Host, known: Known) -> list[Hca]:
    """Return the adapters of the node, mlx5_2 before mlx5_10.

    Args:
        host: The node's files.
        known: From the last time; replaced by what is known now. Facts are read again where the GUID is another or one
            is missing, and what cannot be read just now keeps its last value, so that no id changes because an
            attribute fails once.
    """
    verbs: dict[str, list[kdp.hardware.Directory]] = {}
    for name in ("infiniband_verbs", "infiniband_mad"):
        for entry in host.class_devices(name):
            verbs.setdefault(entry.text("ibdev").or_else(""), []).append(entry)
    entries = {entry.path: entry for entry in host.class_devices("infiniband")}
    known.facts = facts = {path: _facts(entry, known.facts.get(path)) for path, entry in entries.items()}
    guids = Counter(held.guid for path, held in facts.items() if not _is_virtual(path, held))
    known.shared = (known.shared & {*guids}) | {guid for guid, count in guids.items() if guid and count > 1}
    names = {path: _identity(entry, facts[path], known.shared) for path, entry in entries.items()}
    times = Counter(names.values())
    return [
        _read(
            entry,
            names[path] if times[names[path]] == 1 else f"{names[path]}-{entry.name}",
            facts[path],
            verbs.get(entry.name, ()),
            known.last,
        )
        for path, entry in entries.items()
    ]


def _identity(entry: kdp.hardware.Directory, facts: HcaFacts, shared: set[str]) -> str:
    """Return the PCI address of a virtual function, else the GUID, else what the adapter is of, else the name.

    A virtual function's GUID is configuration: it is zero until somebody sets it.
    """
    owner = owner_of(entry.path, facts)
    if _is_virtual(entry.path, facts) and owner is not None:
        return owner
    if facts.guid and facts.guid not in shared:
        return facts.guid
    return owner or (f"{facts.guid}-{entry.name}" if facts.guid else entry.name)


def _is_virtual(path: str, facts: HcaFacts) -> bool:
    return facts.is_virtual and owner_of(path, facts) == facts.address


def owner_of(path: str, facts: HcaFacts) -> str | None:
    """Return an adapter's subfunction, as ``mlx5_core.sf.2``, else the address of its PCI function.

    The PCI function of a subfunction's adapter is its parent's, too. None: it is of none, as soft-RoCE.
    """
    above = path.rpartition("/infiniband/")[0].rpartition("/")[2]
    return above if ".sf." in above else facts.address


def rdma_cm(host: kdp.hardware.Host) -> str | None:
    """Return the node of the connection manager, which all adapters share; None: its module is not loaded."""
    return node_of(host.directory("/sys/class/misc/rdma_cm"))


def shares_namespaces(host: kdp.hardware.Host) -> bool:
    """Return whether containers with a network of their own may use the node's adapters.

    What ``rdma system`` calls the network namespace mode; a kernel before 5.2 has no such thing, and shares.
    """
    return host.directory("/sys/module/ib_core/parameters").flag("netns_mode").or_else(True)


def node_of(directory: kdp.hardware.Directory) -> str | None:
    """Return the device node of a class entry, found by its number: another device may own a node of this name."""
    host, told = directory.host, directory.properties()  # one read, where reading dev would be another
    major, minor, name = told.get("MAJOR", ""), told.get("MINOR", ""), told.get("DEVNAME")
    is_told = _NUMBER.fullmatch(major) and _NUMBER.fullmatch(minor)
    number = (int(major), int(minor)) if is_told else directory.number
    if number is None:
        return None
    if name is not None and host.device_number(f"/dev/{name}") == number:
        return f"/dev/{name}"
    return host.node_of_number("char", *number)


def link_type_of(interface: kdp.hardware.NetInterface | None) -> str | None:
    """Return the type of an interface as the Go plugins name it; None: unknown."""
    return None if interface is None else _LINK_TYPES.get(interface.link_type or 0)


def _facts(entry: kdp.hardware.Directory, last: HcaFacts | None) -> HcaFacts:
    guid = entry.text("node_guid").or_else("").replace(":", "").lower()
    guid = guid if _GUID.fullmatch(guid) and guid.strip("0") else ""
    if last is not None and guid and guid != last.guid and last.guid:
        last = None  # another adapter has come to the same place
    if last is not None and guid and guid == last.guid and all(getattr(last, name) for name in _TOLD):
        return last
    pci = entry.pci
    found = HcaFacts(
        guid=guid,
        address=None if pci is None else pci.address,
        is_virtual=pci is not None and pci.link("physfn") is not None,
        root="" if pci is None else pci.pcie_root or "",
        vendor="" if pci is None or pci.vendor is None else f"{pci.vendor:04x}",
        device="" if pci is None or pci.device is None else f"{pci.device:04x}",
        driver="" if pci is None else pci.driver or "",
        firmware=entry.text("fw_ver").or_else(""),
        model=entry.text("hca_type").or_else(""),
        board=entry.text("board_id").or_else(""),
        numa_nodes=entry.numa_nodes,
    )
    if last is None:
        return found
    # What cannot be read now, or is gone with a device that is half-way out, is as before.
    before = {
        field.name: getattr(last, field.name) for field in attrs.fields(HcaFacts) if not getattr(found, field.name)
    }
    return attrs.evolve(found, **before)


_TOLD = [field.name for field in attrs.fields(HcaFacts) if field.name != "is_virtual"]


def _read(
    entry: kdp.hardware.Directory,
    identity: str,
    facts: HcaFacts,
    nodes: Iterable[kdp.hardware.Directory],
    last: kdp.hardware.LastKnown,
) -> Hca:
    ports, interfaces = read_ports(entry, last, guid=facts.guid, is_pci=facts.address is not None)
    types = {link_type_of(interface) for interface in interfaces.values()}
    types |= {{"Ethernet": "ether", "InfiniBand": "infiniband"}.get(port.link_layer) for port in ports}
    held = {entry.name: node_of(entry) for entry in nodes}
    fault = None
    if not any(name.startswith("uverbs") for name in held):
        fault = f"{entry.name} has no uverbs device: it is being removed while in use, or ib_uverbs is not loaded"
    elif not any(node for name, node in held.items() if name.startswith("uverbs")):
        name = next(name for name in held if name.startswith("uverbs"))
        fault = f"the device node of {name} ({entry.name}) is gone"
    return Hca(
        identity=identity,
        name=entry.name,
        path=entry.path,
        facts=facts,
        interfaces=tuple(interfaces),
        link_types=frozenset(kind for kind in types if kind is not None),
        ports=ports,
        nodes=tuple(node for node in held.values() if node is not None),
        missing=tuple(name for name, node in held.items() if node is None),
        fault=fault,
    )
