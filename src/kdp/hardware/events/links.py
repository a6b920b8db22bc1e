"""`LinkWatch`: the kernel's events of network interfaces that come, go, and change (NETLINK_ROUTE, group of links).

It is the only word that the kernel gives of an RDMA port: there is neither a uevent nor an RDMA netlink message when
its state changes, but its network interface is told up or down within some milliseconds, before or after it. As with
`UeventWatch` each event is a hint to look, not the state, and waiting has a floor.

In containers: each network namespace hears of its own interfaces only, so a pod needs ``hostNetwork`` to hear the
node's. One without hears its own, and nobody tells it so: there the floor is all there is.

Where `Host` is not a real node (a snapshot, a test) the laptop's interfaces are none of it: events come from ``LINKS``
at the root, to which `kdp.testing.SysfsTree.link_event` appends.

Source of the format: the kernel's include/uapi/linux/{netlink,rtnetlink,if_link}.h.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, final

import attrs
from typing_extensions import override

from .netlink import EventWatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..directory import NodeFiles

LINKS = "LINKS"
"""The file at the root of a tree that is no real node, to which its link events are appended."""

_NETLINK_ROUTE = 0
_RTMGRP_LINK = 1
_NEWLINK, _DELLINK = 16, 17
_IFNAME, _OPERSTATE, _CARRIER = 3, 16, 33
_IFF_UP = 1

HEADER = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence, port."""

_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change
_ATTRIBUTE = struct.Struct("=HH")  # rtattr: length, type

_STATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
"""RFC 2863's states as sysfs writes them (``operstate``), in the order of their numbers."""


@final
@attrs.frozen(kw_only=True)
class LinkEvent:
    """One event of a network interface.

    Attributes:
        name: The interface's name; after a rename the new one.
        index: Its number; the same after a rename.
        is_gone: Whether it was removed.
        is_up: Whether it is set up by the admin; whether it works is another question.
        state: As `NetInterface.state`; ``unknown`` where the kernel does not tell.
        carrier: Whether there is a signal; None: not told.
    """

    name: str
    index: int
    is_gone: bool = False
    is_up: bool = True
    state: str = "unknown"
    carrier: bool | None = None


@final
class LinkWatch(EventWatch[LinkEvent]):
    """Wait for events of network interfaces. An async context manager; asyncio only; one reader at a time.

    Args:
        host: The node whose events are wanted.

    Attributes:
        refused: Why there are no events, as a sentence; None: there are, as far as one can know.
        lost: Whether events were lost since the start: the kernel had more than we took.
    """

    def __init__(self, host: NodeFiles) -> None:
        super().__init__(host, protocol=_NETLINK_ROUTE, groups=_RTMGRP_LINK, file=LINKS, kind="link")

    @override
    def _of_message(self, message: bytes) -> list[LinkEvent]:
        return parse(message)

    @override
    def _of_line(self, properties: dict[str, Any]) -> list[LinkEvent]:
        return [LinkEvent(**properties)]


def parse(data: bytes) -> list[LinkEvent]:
    """Return the events of one datagram with any number of messages; truncated and other ones are left out."""
    found: list[LinkEvent] = []
    for kind, message in messages_of(data):
        if kind in (_NEWLINK, _DELLINK) and len(message) >= _LINK.size:
            _, _, index, flags, _ = _LINK.unpack_from(message)
            attributes = attributes_of(message[_LINK.size :])
            state, carrier = attributes.get(_OPERSTATE, b""), attributes.get(_CARRIER, b"")
            found.append(
                LinkEvent(
                    name=attributes.get(_IFNAME, b"").rstrip(b"\0").decode(errors="replace"),
                    index=index,
                    is_gone=kind == _DELLINK,
                    is_up=bool(flags & _IFF_UP),
                    state=_STATES[state[0]] if state and state[0] < len(_STATES) else "unknown",
                    carrier=bool(carrier[0]) if carrier else None,
                )
            )
    return found


def messages_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of one datagram, each by its type; what is cut off is left out."""
    while len(data) >= HEADER.size:
        length, kind = HEADER.unpack_from(data)[:2]
        if not HEADER.size <= length <= len(data):
            return
        yield kind, data[HEADER.size : length]
        data = data[_aligned(length) :]


def attributes_of(data: bytes) -> dict[int, bytes]:
    """Return the attributes that follow a message's head, by type; what is cut off is left out."""
    found: dict[int, bytes] = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if not _ATTRIBUTE.size <= length <= len(data):
            break
        found[kind] = data[_ATTRIBUTE.size : length]
        data = data[_aligned(length) :]
    return found


def _aligned(length: int) -> int:
    return (length + 3) & ~3
