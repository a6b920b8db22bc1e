"""Virtual functions of network controllers (SR-IOV) as sysfs tells them.

A function that a container has may be half invisible here: a CNI plugin moves its network interface, and in the
exclusive network namespace mode its RDMA adapter, into the container. So what they do not tell is taken from the
physical function, and a function is as healthy as its uplink: its own port is down until somebody sets it up inside the
container.

Subfunctions (the kernel's networking/devlink/devlink-port.rst) are devices of the auxiliary bus, ``mlx5_core.sf.4``,
below the PCI function that they share; for a container they are as good as virtual functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .hca import Hca, link_type_of, owner_of
from .uplinks import card_bond, interface_fault, representors, uplinks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import kdp.hardware

NETWORK_CONTROLLER = 0x02

VDPA_DRIVERS = {"vhost_vdpa": "vhost", "virtio_vdpa": "virtio"}
"""What a vDPA device is, by its driver, as sriov-network-device-plugin calls it."""

IOMMUFD = "/dev/iommu"
"""The node that each program opens that uses VFIO without groups."""


@attrs.frozen
class Vdpa:
    """The vDPA device of a function.

    Attributes:
        kind: ``vhost``: a program drives it through a node. ``virtio``: it is a network interface of the node's kernel.
        node: Its device node; None: it has none.
    """

    kind: str
    node: str | None


@attrs.frozen(kw_only=True)
class VirtualFunction:
    """A virtual function, or a subfunction.

    Attributes:
        address: Its PCI address; of a subfunction its name, as ``mlx5_core.sf.4``.
        identity: What stays with it: its path in sysfs; of a subfunction its parent's, and the number that it was made
            with.
        number: The how manieth it is of its physical function, from 0, or the number that a subfunction was made with;
            None: unknown.
        parent: The PCI address of its physical function; its own, if it is alone.
        is_alone: Whether it has no physical function here and can have no virtual ones, as a virtual function that a
            guest was given; a plain network card looks the same.
        parent_interfaces: Network interfaces of that.
        interfaces: Its own, unless a container has them.
        vendor: PCI vendor id, of a subfunction its parent's; empty: unknown.
        device: PCI device id, likewise; empty: unknown.
        driver: The driver that it is bound to, likewise; empty: none.
        is_bound: Whether it is bound to a driver itself.
        aux_type: ``sf``: it is a subfunction; empty: a virtual function.
        vdpa: Its vDPA device; None: it has none.
        acpi_index: Empty: none.
        link_type: ``ether``, ``infiniband``; empty: unknown.
        p_key: Its default partition key; None: it has none.
        numa_nodes: Memory nodes that it is near to.
        root: The PCI root complex, as ``pci0000:3a``.
        uio_nodes: Device nodes by which a program drives it, if its driver is one for that (uio_pci_generic, igb_uio).
        is_vfio: Whether its driver hands it to programs through VFIO.
        group: The number of its IOMMU group; None: it is in none.
        is_without_iommu: Whether that group is one of VFIO's without an IOMMU.
        cdevs: Its own node of VFIO for IOMMUFD, and those of the other functions in that group; empty without IOMMUFD.
        group_members: The addresses of all that is in that group.
        group_fault: Why VFIO does not open that group; None: it does.
        carries_default_route: Whether the node itself uses it.
        hcas: Its RDMA adapters that are visible here.
        uplink_fault: Why its physical function sends nothing; None: it does.
    """

    address: str
    identity: str
    number: int | None = None
    parent: str
    is_alone: bool = False
    parent_interfaces: tuple[str, ...]
    interfaces: tuple[str, ...]
    vendor: str
    device: str
    driver: str
    is_bound: bool
    aux_type: str = ""
    vdpa: Vdpa | None = None
    acpi_index: str = ""
    link_type: str
    p_key: int | None = None
    numa_nodes: tuple[int, ...]
    root: str
    uio_nodes: tuple[str, ...] = ()
    is_vfio: bool = False
    group: int | None = None
    is_without_iommu: bool = False
    cdevs: tuple[str, ...] = ()
    group_members: tuple[str, ...] = ()
    group_fault: str | None = None
    carries_default_route: bool
    hcas: tuple[Hca, ...]
    uplink_fault: str | None

    @property
    def is_uio(self) -> bool:
        """Whether its driver hands it to programs through UIO: uio_pci_generic, igb_uio."""
        return self.is_bound and not self.aux_type and "uio" in self.driver.split("_")

    @property
    def is_for_programs(self) -> bool:
        """Whether no driver of the node's kernel drives it, so that it can have no adapter and no interface here."""
        return self.is_vfio or self.is_uio


def read_functions(
    host: kdp.hardware.Host, hcas: Sequence[Hca], last: kdp.hardware.LastKnown, *, all_ports: bool
) -> list[VirtualFunction]:
    """Return the virtual functions of network controllers, by physical function and number; also those that are alone.

    Args:
        host: The node's files.
        hcas: The adapters.
        last: What attributes of interfaces said.
        all_ports: Whether each port of the physical function must be active, or one.
    """
    by_address = _by_owner(hcas)
    found: list[VirtualFunction] = []
    routed = _default_routes(host)
    vdpa = _vdpa_devices(host)
    groups = host.iommu_groups()
    parents: dict[str, Mapping[str, int]] = {}
    faults: dict[str, str | None] = {}
    for function in host.pci_functions():
        if (function.class_code or 0) >> 16 != NETWORK_CONTROLLER:
            continue
        parent = function.physical_function
        if parent is None:
            if not function.virtual_function_limit and not function.virtual_functions:
                common = _read(function, function, function, None, by_address, routed, last)
                found.append(attrs.evolve(_with_own(function, common, None, vdpa, groups), is_alone=True))
            continue
        if parent.path not in parents:
            parents[parent.path] = {held.address: number for number, held in parent.virtual_functions.items()}
            faults[parent.path] = _uplink_fault(parent, by_address, last, all_ports=all_ports)
        common = _read(function, function, parent, faults[parent.path], by_address, routed, last)
        found.append(_with_own(function, common, parents[parent.path].get(function.address), vdpa, groups))
    return sorted(found, key=_place)


def read_subfunctions(
    host: kdp.hardware.Host, hcas: Sequence[Hca], last: kdp.hardware.LastKnown, *, all_ports: bool
) -> list[VirtualFunction]:
    """Return the subfunctions of network controllers, by physical function and number. See `read_functions`."""
    by_owner = _by_owner(hcas)
    routed = _default_routes(host)
    faults: dict[str, str | None] = {}
    found: list[VirtualFunction] = []
    for entry in host.directories("/sys/bus/auxiliary/devices/*.sf.*"):
        parent = entry.pci
        if parent is None or (parent.class_code or 0) >> 16 != NETWORK_CONTROLLER:
            continue
        if parent.path not in faults:
            faults[parent.path] = _uplink_fault(parent, by_owner, last, all_ports=all_ports)
        common = _read(entry, parent, parent, faults[parent.path], by_owner, routed, last)
        number = entry.integer("sfnum").value
        identity = f"{parent.path} subfunction {entry.name if number is None else number}"
        found.append(attrs.evolve(common, identity=identity, number=number, aux_type="sf"))
    return sorted(found, key=_place)


def _place(function: VirtualFunction) -> tuple[str, int, str]:
    return function.parent, -1 if function.number is None else function.number, function.address


def _read(
    entry: kdp.hardware.Directory,
    described: kdp.hardware.PciFunction,
    parent: kdp.hardware.PciFunction,
    uplink_fault: str | None,
    hcas: Mapping[str, Sequence[Hca]],
    routed: frozenset[str],
    last: kdp.hardware.LastKnown,
) -> VirtualFunction:
    """Return what both kinds tell; a subfunction is described by the PCI function that is its parent."""
    host = entry.host
    interfaces = tuple(child.name for child in entry.children("net/*"))
    of_parent = parent.children("net/*")
    others = representors(of_parent, last)
    parent_interfaces = tuple(child.name for child in of_parent if child.name not in others)
    mine = tuple(hcas.get(entry.name, ()))
    types = [link_type_of(host.net_interface(name)) for name in (*interfaces, *parent_interfaces)]
    types += [kind for hca in (*mine, *hcas.get(parent.address, ())) for kind in sorted(hca.link_types)]
    return VirtualFunction(
        address=entry.name,
        identity=described.path,
        parent=parent.address,
        parent_interfaces=parent_interfaces,
        interfaces=interfaces,
        vendor="" if described.vendor is None else f"{described.vendor:04x}",
        device="" if described.device is None else f"{described.device:04x}",
        driver=described.driver or "",
        is_bound=entry.driver is not None,
        link_type=next((kind for kind in types if kind is not None), ""),
        numa_nodes=described.numa_nodes,
        root=described.pcie_root or "",
        carries_default_route=not routed.isdisjoint(interfaces),
        hcas=mine,
        uplink_fault=uplink_fault,
    )


def _with_own(
    function: kdp.hardware.PciFunction,
    common: VirtualFunction,
    number: int | None,
    vdpa: Mapping[str, Vdpa],
    groups: Mapping[int, kdp.hardware.IommuGroup],
) -> VirtualFunction:
    """Return it with what only a virtual function has."""
    keys = [
        function.host.directory(f"{hca.path}/ports/{number}/pkeys").hexadecimal("0")
        for hca in common.hcas
        for number in range(1, len(hca.ports) + 1)
    ]
    group = None if (in_group := function.iommu_group) is None else groups.get(in_group)
    has_iommufd = function.host.device_number(IOMMUFD) is not None
    others = () if group is None else (member for member in group.members if member.address != function.address)
    cdevs = [member.vfio_cdev for member in (function, *others) if member.is_vfio]
    return attrs.evolve(
        common,
        number=number,
        vdpa=vdpa.get(function.address),
        acpi_index=function.text("acpi_index").or_else(""),
        p_key=next((key.value for key in keys if key.value is not None), None),
        uio_nodes=tuple(node for entry in function.children("uio/uio*") if (node := entry.node) is not None),
        is_vfio=function.is_vfio,
        group=in_group,
        is_without_iommu=function.host.device_number(f"/dev/vfio/noiommu-{in_group}") is not None,
        cdevs=tuple(cdev for cdev in cdevs if cdev is not None) if has_iommufd else (),
        group_members=() if group is None else tuple(member.address for member in group.members),
        group_fault=None if group is None else group.vfio_fault,
    )


def _by_owner(hcas: Sequence[Hca]) -> dict[str, list[Hca]]:
    """Return the adapters by PCI address, those of subfunctions by the names of these."""
    found: dict[str, list[Hca]] = {}
    for hca in hcas:
        found.setdefault(owner_of(hca.path, hca.facts) or "", []).append(hca)
    return found


def _vdpa_devices(host: kdp.hardware.Host) -> dict[str, Vdpa]:
    """Return the vDPA devices by PCI address. Their creator names them; the node belongs to a device below."""
    found: dict[str, Vdpa] = {}
    for entry in host.directories("/sys/bus/vdpa/devices/*"):
        kind = VDPA_DRIVERS.get(entry.driver or "")
        owner = entry.parent
        function = None if owner is None or kind is None else host.pci_function(owner.name)
        if kind is not None and function is not None:
            nodes = [child.node for child in entry.children("vhost-vdpa-*")] if kind == "vhost" else []
            found[function.address] = Vdpa(kind, next((node for node in nodes if node is not None), None))
    return found


def _uplink_fault(
    parent: kdp.hardware.PciFunction,
    hcas: Mapping[str, Sequence[Hca]],
    last: kdp.hardware.LastKnown,
    *,
    all_ports: bool,
) -> str | None:
    """Return why nothing gets out of a physical function."""
    faults = [hca.unhealthy_because(all_ports=all_ports) for hca in hcas.get(parent.address, ())]
    if not faults:
        ways = uplinks(parent.children("net/*"), last)
        faults = [_way_fault(way, parent, hcas, last, all_ports=all_ports) for way in ways]
    told = [fault for fault in faults if fault is not None]
    return f"its uplink: {'; '.join(told)}" if told and (all_ports or len(told) == len(faults)) else None


def _way_fault(
    way: kdp.hardware.Directory,
    parent: kdp.hardware.PciFunction,
    hcas: Mapping[str, Sequence[Hca]],
    last: kdp.hardware.LastKnown,
    *,
    all_ports: bool,
) -> str | None:
    """Return why nothing gets out through an interface of a physical function without an adapter.

    In a bond of the card's functions (VF LAG) one of them has the adapter of all, and its port is the bond.
    """
    card = parent.address.rpartition(".")[0]
    of_card = [hca for address, held in hcas.items() if address.rpartition(".")[0] == card for hca in held]
    sharing = [(hca, name) for hca in of_card for name in hca.interfaces if _is_above(name, way)]
    bond = sharing[0][1] if sharing else card_bond(way, last)
    fault = interface_fault(way.host, bond or way.name, last)
    told = [told for hca, _ in sharing if (told := hca.unhealthy_because(all_ports=all_ports)) is not None]
    return fault if fault is not None or not told else f"{bond}: {'; '.join(told)}"


def _is_above(name: str, interface: kdp.hardware.Directory) -> bool:
    above = interface.host.net_interface(name)
    return above is not None and interface.name in above.lower


def _default_routes(host: kdp.hardware.Host) -> frozenset[str]:
    """Return the interfaces of the node's default routes, and those below them: of a bond, a bridge, a VLAN."""
    rows = [line.split() for line in _routes(host, "route").splitlines()[1:]]
    found = {row[0] for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"}
    # Destination, its prefix, source, its prefix, next hop, metric, references, use, flags, interface.
    rows = [line.split() for line in _routes(host, "ipv6_route").splitlines()]
    found |= {row[9] for row in rows if len(row) > 9 and row[1] == "00" and not row[0].strip("0") and row[9] != "lo"}
    todo = [*found]
    while todo:
        interface = host.net_interface(todo.pop())
        lower = set[str]() if interface is None else {*interface.lower} - found
        found |= lower
        todo += lower
    return frozenset(found)


def _routes(host: kdp.hardware.Host, name: str) -> str:
    """Return a table of the node's network; process 1 is the node's for every caller."""
    reading = host.reading(f"/proc/1/net/{name}")
    return (host.reading(f"/proc/net/{name}") if reading.value is None else reading).or_else("")
