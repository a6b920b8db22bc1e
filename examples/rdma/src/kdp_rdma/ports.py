"""The ports of an RDMA adapter as sysfs tells them, and which of them are its own.

In switchdev mode mlx5 gives the physical function's adapter a port for each virtual function that there could be, its
representor's, beside the uplink's (the kernel's drivers/infiniband/hw/mlx5/ib_rep.c). Nobody says which is which: no
port has GIDs then, and the uplink's is the first or the last by the kernel's version. But a port is ACTIVE while its
interface is up. So where no port is known to be the uplink's, its interface is judged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

import kdp.hardware

from .uplinks import card_bond, interface_fault, is_of_switch, is_representor, is_uplink, representors, uplinks

if TYPE_CHECKING:
    from collections.abc import Sequence

ACTIVE = 4

_STATES = {
    1: "DOWN",
    2: "INIT: no subnet manager has configured it",
    3: "ARMED: the subnet manager has not activated it yet",
    5: "ACTIVE_DEFER: its link has just failed",
}
_PHYSICAL = {
    "Polling": "no signal, is the cable plugged in and its other end up?",
    "Disabled": "its interface is set down, or the port is disabled",
    "LinkErrorRecovery": "the link recovers from errors",
}

_NUMBER = re.compile(r"[0-9]{1,9}")

Interfaces = dict[str, kdp.hardware.NetInterface | None]


@attrs.frozen(kw_only=True)
class Port:
    """A port of an adapter.

    Attributes:
        link_layer: ``InfiniBand``, ``Ethernet``; empty: unknown.
        rate: As ``100 Gb/sec (4X EDR)``.
        fault: Why nothing can be sent through it, as ``port 1 is DOWN``; None: it is active.
        path: Its directory in sysfs; empty: which one is this port is not known.
    """

    link_layer: str
    rate: str
    fault: str | None
    path: str = ""


def read_ports(
    entry: kdp.hardware.Directory, last: kdp.hardware.LastKnown, *, guid: str, is_pci: bool
) -> tuple[tuple[Port, ...], Interfaces]:
    """Return an adapter's own ports, and its network interfaces by name; None: one that is not visible here.

    Args:
        entry: The adapter.
        last: What attributes of interfaces said.
        guid: Its GUID: of another adapter nothing is remembered.
        is_pci: Whether it is of a PCI function; what is not, as soft-RoCE, may be on top of a representor.
    """
    host = entry.host
    ports = [port for port in entry.children("ports/*") if _NUMBER.fullmatch(port.name)]
    mine = entry.child("device").children("net/*")
    others = representors(mine, last)
    interfaces: Interfaces = {
        child.name: kdp.hardware.NetInterface(host, child.path) for child in mine if child.name not in others
    }
    names = {port.path: _interface_of(port, last, f"{guid} {len(ports)}") for port in ports}
    for name in (entry.text("parent").or_else(""), *names.values()):
        if _is_name(name) and name not in others and name not in interfaces:
            interface = host.net_interface(name)
            if is_pci and interface is not None and is_representor(interface, last):
                others.add(name)  # in a bond of the card's functions also below another of these
            else:
                interfaces[name] = interface
    own = [port for port in ports if names[port.path] not in others]
    if not (is_pci and len(ports) > 1 and (others or any(_is_of_switchdev(each, last) for each in mine))):
        return tuple(_port(port) for port in own), interfaces
    known = [port for port in own if _is_way_out(names[port.path], mine, interfaces, last)]
    if known or len(own) < 2:
        return tuple(_port(port) for port in known or own), interfaces
    ways = [way for way in uplinks(mine, last) if not is_representor(way, last)]
    bonds = {way.name: card_bond(way, last) for way in ways}
    interfaces.update((bond, host.net_interface(bond)) for bond in bonds.values() if bond is not None)
    return tuple(_uplink(host, bond or name, own, last) for name, bond in (bonds or {"": None}).items()), interfaces


def _interface_of(port: kdp.hardware.Directory, last: kdp.hardware.LastKnown, of: str) -> str:
    """Return the name of a port's interface; empty: nobody says.

    Of its 1024 GIDs most fail, so only the first one's interface is read.
    """
    said = port.text("gid_attrs/ndevs/0").or_else("")
    name = last.recall(f"{port.path} {of}", said or None) or ""
    return name if said or (_is_name(name) and port.host.net_interface(name) is not None) else ""


def _is_of_switchdev(interface: kdp.hardware.Directory, last: kdp.hardware.LastKnown) -> bool:
    return is_representor(interface, last) or is_of_switch(interface, last)


def _is_name(text: str) -> bool:
    """Return whether this may be the name of an interface, as the kernel's dev_valid_name() has it."""
    return 0 < len(text) < 16 and text not in (".", "..") and not any(c in "/:\0" or c.isspace() for c in text)


def _is_way_out(
    name: str,
    mine: Sequence[kdp.hardware.Directory],
    interfaces: Interfaces,
    last: kdp.hardware.LastKnown,
) -> bool:
    """Return whether an interface is known to be no representor: an uplink, or what is on top of one, as a bond."""
    if any(each.name == name for each in mine):
        return any(each.name == name for each in uplinks(mine, last))
    interface = interfaces.get(name)
    return interface is not None and (interface.pci is None or is_uplink(interface, last))


def _uplink(
    host: kdp.hardware.NodeFiles, name: str, ports: Sequence[kdp.hardware.Directory], last: kdp.hardware.LastKnown
) -> Port:
    """Return the port of an interface that no driver names; all ports have the same rate. Empty if there is none."""
    fault = interface_fault(host, name, last, must_be_up=True) if name else "is not visible"
    if fault is None and all(_port_fault(port) is not None for port in ports):
        fault = f"{name} is up, and none of the ports is ACTIVE"
    return attrs.evolve(_port(ports[0]), fault=None if fault is None else f"uplink {fault}", path="")


def _port(port: kdp.hardware.Directory) -> Port:
    fault = _port_fault(port)
    return Port(
        link_layer=port.text("link_layer").or_else(""),
        rate=port.text("rate").or_else(""),
        fault=None if fault is None else f"port {port.name} is {fault}",
        path=port.path,
    )


def _port_fault(port: kdp.hardware.Directory) -> str | None:
    state = port.text("state").parsed(lambda text: int(text.partition(":")[0]), "a port's state such as 4: ACTIVE")
    if state.value is None:
        return f"in an unknown state: {state.problem}"
    if state.value == ACTIVE:
        return None
    if state.value != 1:
        return _STATES.get(state.value, f"in the unknown state {state.value}")
    physical = port.text("phys_state").or_else("").partition(":")[2].strip()
    reason = ": ".join(part for part in (physical, _PHYSICAL.get(physical)) if part)
    return f"DOWN ({reason})" if reason else "DOWN"
