"""Which network interface is a way out of the node: uplinks, representors, and bonds that the card itself makes.

In switchdev mode (the kernel's networking/switchdev.rst, devlink-port.rst) a function has an interface for its own
port, the uplink, and one for each of its virtual functions and subfunctions: a representor. One that is up says nothing
of the way out.

A bond of two functions of one card is a bond in hardware (VF LAG): what is sent by a virtual function of the one goes
out through the other when its own cable is pulled. Functions of one card tell the same ``phys_switch_id``, and none
outside switchdev mode.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import kdp.hardware

_REPRESENTOR = re.compile(r"(c\d+)?pf\d+((vf|sf)\d+)?")
_UPLINK = re.compile(r"p\d+(s\d+)?")
"""What ``phys_port_name`` says (the kernel's devlink-port.rst)."""

_DOWN = ("down", "lowerlayerdown", "notpresent")


def _said(interface: kdp.hardware.Directory, name: str, last: kdp.hardware.LastKnown) -> str:
    """Return an interface's attribute, or its last known value; an absent attribute is an answer, too."""
    key = f"{interface.path}/{name}"
    if last.was_asked(key):  # several questions of one scan are about it
        return last.recall(key, None) or ""
    reading = interface.text(name)
    said = "" if reading.errno == errno.EOPNOTSUPP else reading.value or None
    return last.recall(key, said) or ""


def is_representor(interface: kdp.hardware.Directory, last: kdp.hardware.LastKnown) -> bool:
    """Return whether an interface says that it stands for a virtual function or subfunction."""
    return _REPRESENTOR.fullmatch(_said(interface, "phys_port_name", last)) is not None


def is_uplink(interface: kdp.hardware.Directory, last: kdp.hardware.LastKnown) -> bool:
    """Return whether an interface says that it is a port of the card."""
    return _UPLINK.fullmatch(_said(interface, "phys_port_name", last)) is not None


def is_of_switch(interface: kdp.hardware.Directory, last: kdp.hardware.LastKnown) -> bool:
    """Return whether an interface says that its function is in switchdev mode."""
    return _said(interface, "phys_switch_id", last) != ""


def representors(interfaces: Sequence[kdp.hardware.Directory], last: kdp.hardware.LastKnown) -> set[str]:
    """Return the representors among a function's interfaces; an interface that is alone belongs to its port."""
    if len(interfaces) == 1:
        return set()
    return {each.name for each in interfaces if is_representor(each, last)}


def uplinks(interfaces: Sequence[kdp.hardware.Directory], last: kdp.hardware.LastKnown) -> list[kdp.hardware.Directory]:
    """Return the uplinks among a function's interfaces: those that say so, else those that are no representors."""
    if len(interfaces) == 1:
        return [*interfaces]
    told = [each for each in interfaces if is_uplink(each, last)]
    others = representors(interfaces, last)
    return told or [each for each in interfaces if each.name not in others]


def card_bond(uplink: kdp.hardware.Directory, last: kdp.hardware.LastKnown) -> str | None:
    """Return the bond that an uplink shares with another of the same card in switchdev mode; None: there is none."""
    master = uplink.link("master")
    bond = None if master is None else uplink.host.net_interface(master)
    if bond is None or not bond.child("bonding").exists or not is_of_switch(uplink, last):
        return None
    legs = [leg for name in bond.lower if name != uplink.name and (leg := uplink.host.net_interface(name)) is not None]
    switch = _said(uplink, "phys_switch_id", last)
    return bond.name if any(_said(leg, "phys_switch_id", last) == switch for leg in legs) else None


def interface_fault(
    host: kdp.hardware.NodeFiles, name: str, last: kdp.hardware.LastKnown, *, must_be_up: bool = False
) -> str | None:
    """Return why nothing gets out through an interface, as ``eth0 is down``; None: it does.

    Args:
        host: The node's files.
        name: Its name. Of a bond one of those below it must not be down.
        last: What attributes of interfaces said.
        must_be_up: Whether one that does not say how it is has a fault.
    """
    interface = host.net_interface(name)
    if interface is None:
        return f"{name} is gone" if must_be_up else None
    state = _state(interface, last)
    if state in _DOWN or (must_be_up and state != "up"):
        return f"{name} is {state}"
    below = [held for lower in interface.lower if (held := host.net_interface(lower)) is not None]
    down = [f"{held.name} is {state}" for held in below if (state := _state(held, last)) in _DOWN]
    return f"{name} has nothing below it that is up: {', '.join(down)}" if below and len(down) == len(below) else None


def judged_with(host: kdp.hardware.Host, names: Iterable[str]) -> set[str]:
    """Return interfaces and all others whose state decides whether traffic gets out, as the parts of a bond."""
    found = {*names}
    for interface in [*map(host.net_interface, found)]:
        master = None if interface is None else interface.link("master")
        bond = None if master is None else host.net_interface(master)
        if interface is not None:
            found.update(interface.lower)
        if bond is not None and bond.child("bonding").exists:
            found.update((bond.name, *bond.lower))
    return found


def _state(interface: kdp.hardware.Directory, last: kdp.hardware.LastKnown) -> str:
    return _said(interface, "operstate", last) or "unknown"
