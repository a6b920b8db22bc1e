"""`NetInterface`: what sysfs tells of a network interface.

``/sys/class/net`` shows the interfaces of the network namespace in which sysfs was mounted: a pod without the node's
network (hostNetwork) sees its own only. Source of the names: the kernel's Documentation/ABI/testing/sysfs-class-net.
"""

from __future__ import annotations

from typing import final

import attrs

from .directory import Directory

__all__ = ["NetInterface"]


@final
@attrs.frozen
class NetInterface(Directory):
    """A network interface. A property is None if sysfs has none; an interface that is down has no speed and carrier."""

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
        """Its addresses that others can reach, as ``192.0.2.5/24``; none also where nobody tells. See `addresses`."""
        from .addresses import addresses_of

        return addresses_of(self.host, self.name, self.index)

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
