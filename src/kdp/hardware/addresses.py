"""The IP addresses of network interfaces, by netlink: sysfs does not tell them.

As with `LinkWatch` it is the network namespace of this process that answers, so a pod needs ``hostNetwork`` to learn
the node's. Where `Host` is not a real node (a snapshot, a test) they are in ``ADDRESSES`` at the root, to which
`kdp.testing.SysfsTree.address` appends.

Source of the format: the kernel's include/uapi/linux/{netlink,rtnetlink,if_addr}.h.
"""

from __future__ import annotations

import socket
import struct
from contextlib import closing, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from .events.netlink import HEADER, attributes_of, messages_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .directory import NodeFiles

ADDRESSES: Final = "ADDRESSES"
"""The file at the root of a tree that is no real node: a line of it is an interface's name and an address."""

_NETLINK_ROUTE = 0
_DONE, _ERROR, _NEWADDR, _GETADDR = 3, 2, 20, 22
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ADDRESS, _LOCAL = 1, 2
_LINK_SCOPE = 253
"""RT_SCOPE_LINK; from it on an address is known on its link or on its host only."""

_ADDR = struct.Struct("=BBBBI")  # ifaddrmsg: family, length of the prefix, flags, scope, index
_SECONDS = 2.0


def addresses_of(host: NodeFiles, name: str, index: int | None) -> tuple[str, ...]:
    """Return the addresses of an interface that others can reach, as ``192.0.2.5/24``; none also where nobody tells."""
    if not host.is_real:
        lines = (line.split() for line in host.reading(f"/{ADDRESSES}").or_else("").splitlines())
        return tuple(line[1] for line in lines if len(line) == 2 and line[0] == name)
    with suppress(OSError), closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE)) as asked:
        asked.settimeout(_SECONDS)
        asked.send(HEADER.pack(HEADER.size + _ADDR.size, _GETADDR, _DUMP, 1, 0) + _ADDR.pack(0, 0, 0, 0, 0))
        found: list[str] = []
        while True:
            data = asked.recv(1 << 16)
            found += [text for number, text in parse_addresses(data) if number == index]
            if not data or any(kind in (_DONE, _ERROR) for kind, _ in messages_of(data)):
                return tuple(dict.fromkeys(found))
    return ()


def parse_addresses(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield the addresses of one datagram that others can reach, each with the number of its interface."""
    for kind, message in messages_of(data):
        if kind != _NEWADDR or len(message) < _ADDR.size:
            continue
        _, prefix, _, scope, index = _ADDR.unpack_from(message)
        attributes = attributes_of(message[_ADDR.size :])
        packed = attributes.get(_LOCAL) or attributes.get(
            _ADDRESS, b""
        )  # of a point-to-point link the first is our end
        if scope < _LINK_SCOPE and len(packed) in (4, 16):
            yield index, f"{ip_address(packed)}/{prefix}"
