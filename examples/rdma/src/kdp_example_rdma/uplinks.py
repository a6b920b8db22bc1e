"""Which network interface is a way out of the node: uplinks, representors, and bonds that the card itself makes.

In switchdev mode (the kernel's networking/switchdev.rst, devlink-port.rst) a function has an interface for its own port, the uplink,
and one for each of its virtual functions and subfunctions: a representor. One that is up says nothing of the way out.

A bond of two functions of one card is a bond in hardware (VF LAG): what is sent by a virtual function of the one goes out through the
other when its own cable is pulled. Functions of one card tell the same ``phys_switch_id``, and none outside switchdev mode.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import kdp.hardware

__all__ = [
    "Memory",
    "card_bond",
    "interface_fault",
    "is_of_switch",
    "is_representor",
    "is_uplink",
    "representors",
    "uplinks",
]

_REPRESENTOR = re.compile(r"(c\d+)?pf\d+((vf|sf)\d+)?")
_UPLINK = re.compile(r"p\d+(s\d+)?")
"""What ``phys_port_name`` says (the kernel's devlink-port.rst)."""

_DOWN = ("down", "lowerlayerdown", "notpresent")


@attrs.define
class Memory:
    """What attributes said at the last look: what one said stays while it fails."""

    _last: dict[str, str] = attrs.field(factory=dict[str, str])
    _now: dict[str, str] = attrs.field(factory=dict[str, str])

    def turn(self) -> None:
        """Begin a look; what the one before did not ask for is forgotten."""
        self._last, self._now = self._now, {}

    def keep(self, key: str, said: str) -> str:
        """Return what was said, or the last that was where that is nothing; empty: nothing ever was."""
        self._now[key] = said = said or self._now.get(key) or self._last.get(key, "")
        return said

    def text(self, interface: kdp.hardware.Directory, name: str) -> str:
        """Return what an interface's attribute says or has said; that it has none of this is an answer, and replaces the last."""
        key = f"{interface.path}/{name}"
        if key in self._now:  # several questions of one look are about it
            return self._now[key]
        reading = interface.text(name)
        if reading.errno == errno.EOPNOTSUPP:
            self._last.pop(key, None)
        return self.keep(key, reading.or_else(""))


def is_representor(interface: kdp.hardware.Directory, memory: Memory) -> bool:
    """Return whether an interface says that it stands for a virtual function or subfunction."""
    return _REPRESENTOR.fullmatch(memory.text(interface, "phys_port_name")) is not None


def is_uplink(interface: kdp.hardware.Directory, memory: Memory) -> bool:
    """Return whether an interface says that it is a port of the card."""
    return _UPLINK.fullmatch(memory.text(interface, "phys_port_name")) is not None


def is_of_switch(interface: kdp.hardware.Directory, memory: Memory) -> bool:
    """Return whether an interface says that its function is in switchdev mode."""
    return memory.text(interface, "phys_switch_id") != ""


def representors(interfaces: Sequence[kdp.hardware.Directory], memory: Memory) -> set[str]:
    """Return which of a function's interfaces stand for a virtual function or subfunction; one that is alone is its port's."""
    if len(interfaces) == 1:
        return set()
    return {each.name for each in interfaces if is_representor(each, memory)}


def uplinks(interfaces: Sequence[kdp.hardware.Directory], memory: Memory) -> list[kdp.hardware.Directory]:
    """Return which of a function's interfaces are its ways out: those that say so, else those that are no representors."""
    if len(interfaces) == 1:
        return [*interfaces]
    told = [each for each in interfaces if is_uplink(each, memory)]
    others = representors(interfaces, memory)
    return told or [each for each in interfaces if each.name not in others]


def card_bond(uplink: kdp.hardware.Directory, memory: Memory) -> str | None:
    """Return the bond that an uplink shares with another of the same card in switchdev mode; None: there is none."""
    master = uplink.link("master")
    bond = None if master is None else uplink.host.net_interface(master)
    if bond is None or not bond.child("bonding").exists or not is_of_switch(uplink, memory):
        return None
    legs = [leg for name in bond.lower if name != uplink.name and (leg := uplink.host.net_interface(name)) is not None]
    switch = memory.text(uplink, "phys_switch_id")
    return bond.name if any(memory.text(leg, "phys_switch_id") == switch for leg in legs) else None


def interface_fault(host: kdp.hardware.Host, name: str, memory: Memory, *, must_be_up: bool = False) -> str | None:
    """Return why nothing gets out through an interface, as ``eth0 is down``; None: it does.

    Args:
        host: The node's files.
        name: Its name. Of a bond one of those below it must not be down.
        memory: Of the last look.
        must_be_up: Whether one that does not say how it is has a fault.
    """
    interface = host.net_interface(name)
    if interface is None:
        return f"{name} is gone" if must_be_up else None
    state = _state(interface, memory)
    if state in _DOWN or (must_be_up and state != "up"):
        return f"{name} is {state}"
    below = [held for lower in interface.lower if (held := host.net_interface(lower)) is not None]
    down = [f"{held.name} is {state}" for held in below if (state := _state(held, memory)) in _DOWN]
    return f"{name} has nothing below it that is up: {', '.join(down)}" if below and len(down) == len(below) else None


def _state(interface: kdp.hardware.Directory, memory: Memory) -> str:
    return memory.text(interface, "operstate") or "unknown"
