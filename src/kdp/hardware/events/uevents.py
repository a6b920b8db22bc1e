"""`UeventWatch`: what the kernel tells of devices that come, go and change, by netlink (NETLINK_KOBJECT_UEVENT).

Each event is a hint to look, not the state: events can be lost, and some changes have none (an RDMA port's state, an
FPGA's error registers). So waiting has a floor: after so many seconds `UeventWatch.events` returns without an event,
and the caller looks.

In containers: the kernel tells every network namespace, but only those of the first user namespace; a pod without the
node's network hears of all devices but network interfaces, of which each namespace hears its own. A pod in a user
namespace of its own (``hostUsers: false``) gets no events, and no error: there the floor is all there is.

Where `Host` is not a real node (a snapshot, a test) the laptop's events are none of it: those come from ``UEVENTS`` at
the root, a JSON object of properties in each line, to which `kdp.testing.SysfsTree.uevent` appends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import attrs
from typing_extensions import override

from .netlink import EventWatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..directory import NodeFiles

UEVENTS = "UEVENTS"
"""The file at the root of a tree that is no real node, to which its events are appended."""

_NETLINK_KOBJECT_UEVENT = 15
_FROM_THE_KERNEL = 1
"""The multicast group; group 2 is udev's."""


@final
@attrs.frozen(kw_only=True)
class Uevent:
    """One event of the kernel.

    Attributes:
        action: ``add``, ``remove``, ``change``, ``move``, ``bind``, ``unbind``, ``online``, ``offline``.
        path: The device's directory in sysfs, ``/sys/devices/...``; after ``remove`` it is gone.
        subsystem: Its bus or class.
        properties: All that was told: ``DEVNAME``, ``MAJOR``, ``DRIVER``, ...
    """

    action: str
    path: str
    subsystem: str
    properties: Mapping[str, str]

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Uevent:
        """Return the event with these properties."""
        return cls(
            action=properties.get("ACTION", ""),
            path=f"/sys{properties.get('DEVPATH', '')}",
            subsystem=properties.get("SUBSYSTEM", ""),
            properties=properties,
        )


@final
class UeventWatch(EventWatch[Uevent]):
    """Wait for events of the kernel. An async context manager; asyncio only; one reader at a time.

    Args:
        host: The node whose events are wanted.
        subsystems: Of these buses and classes only, as ``{"infiniband"}``; default: all.

    Attributes:
        refused: Why there are no events, as a sentence; None: there are, as far as one can know. Where there are none
            `events` returns after its time and the caller looks.
        lost: Whether events were lost since the start: the kernel had more than we took.
    """

    def __init__(self, host: NodeFiles, *, subsystems: Iterable[str] | None = None) -> None:
        super().__init__(host, protocol=_NETLINK_KOBJECT_UEVENT, groups=_FROM_THE_KERNEL, file=UEVENTS, kind="device")
        self._subsystems = None if subsystems is None else frozenset(subsystems)

    @override
    def _of_message(self, message: bytes) -> list[Uevent]:
        return self._of_line(parse(message))

    @override
    def _of_line(self, properties: dict[str, Any]) -> list[Uevent]:
        event = Uevent.of(properties)
        return [event] if self._subsystems is None or event.subsystem in self._subsystems else []


def parse(data: bytes) -> dict[str, str]:
    """Return the properties of a message: ``add@/devices/...``, then ``NAME=value``, each ended by a NUL."""
    lines = data.decode(errors="replace").split("\0")[1:]
    return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals}
