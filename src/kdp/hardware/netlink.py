"""What the kernel tells by netlink: `UeventWatch` of devices, `LinkWatch` and `addresses_of` of network interfaces.

Each event is a hint to look, not the state: events can be lost, and some changes have none (an RDMA port's state, an
FPGA's error registers). So waiting has a floor: after so many seconds `EventWatch.events` returns without an event, and
the caller looks. Netlink says when it has lost messages (ENOBUFS); the caller looks at everything then.

When an RDMA port's state changes, the kernel sends neither a uevent nor an RDMA netlink message. Only the port's
network interface has an event then, some milliseconds before or after it.

In containers: each network namespace hears of its own interfaces only, and lists no others. So a pod needs
``hostNetwork`` to learn the node's, and gets no error without it. Uevents of other devices come to every network
namespace of the first user namespace. A pod in a user namespace of its own (``hostUsers: false``) gets none, and no
error: there the floor is all there is.

Where `Host` is not a real node (a snapshot, a test), nothing of this machine is told. Events are JSON objects, one in a
line, in ``UEVENTS`` and ``LINKS`` at the root, and addresses stand in ``ADDRESSES``; `kdp.testing.SysfsTree` appends to
them.

Source of the formats: the kernel's include/uapi/linux/{netlink,rtnetlink,if_link,if_addr}.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final

import anyio
import attrs
from typing_extensions import override

from ..storage import reading
from ..storage.documents import parse_json
from .inotify import DirectoryWatch, check_entered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from .directory import NodeFiles

Event = TypeVar("Event")

_BUFFER = 1 << 20
"""Socket buffer in bytes: loading a driver on a large node causes thousands of events at once."""


class EventWatch(ABC, Generic[Event]):
    """What `UeventWatch` and `LinkWatch` have in common; each says in its docstring what it is to its user."""

    def __init__(self, host: NodeFiles, *, protocol: int, groups: int, file: str, kind: str) -> None:
        self.refused: str | None = None
        self.lost = False
        self._host = host
        self._protocol, self._groups = protocol, groups
        self._name_of_file = file  # at the root of a tree that is no real node
        self._kind = kind
        self._socket: socket.socket | None = None
        self._file: _Appended | None = None

    async def __aenter__(self) -> Self:
        if self._host.is_real:
            try:
                self._socket = _open(self._protocol, self._groups)
            except OSError as error:
                self.refused = f"the kernel's {self._kind} events are refused: {error.strerror}"
        else:
            self._file = _Appended(Path(self._host.inside(f"/{self._name_of_file}")))
            await self._file.__aenter__()
            self.refused = self._file.refused
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._file is not None:
            await self._file.__aexit__()

    async def events(self, *, at_most: float | None) -> list[Event]:
        """Wait for wanted events and return all that have come.

        An empty list says "look at everything": the time is up, or events were lost. Cancellation loses no event.

        Args:
            at_most: Seconds after which it returns an empty list; None: never.

        Raises:
            RuntimeError: It is called before ``async with``.
        """
        check_entered(self._socket is not None or self._file is not None or self.refused is not None)
        with anyio.move_on_after(at_most):
            while True:
                if self._socket is not None:
                    await anyio.wait_readable(self._socket)
                    messages, complete = _take(self._socket)
                    if not complete:
                        self.lost = True
                        return []
                    found = [event for message in messages for event in self._of_message(message)]
                elif self._file is not None and self._file.refused is None:
                    appended = self._file.take()
                    if not appended:
                        await self._file.changes()
                    found = [event for properties in appended for event in self._of_line(properties)]
                else:
                    await anyio.sleep_forever()
                    raise AssertionError
                if found:
                    return found
        return []

    @abstractmethod
    def _of_message(self, message: bytes) -> list[Event]:
        """Return the wanted events of a message of the kernel."""

    @abstractmethod
    def _of_line(self, properties: dict[str, Any]) -> list[Event]:
        """Return the wanted events of a line of the file."""


def _open(protocol: int, groups: int) -> socket.socket:
    """Return a socket that hears these multicast groups; it does not block.

    Raises:
        OSError: The kernel has no such protocol, or refuses it.
    """
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        opened.bind((0, groups))
    except OSError:
        opened.close()
        raise
    return opened


def _take(opened: socket.socket) -> tuple[list[bytes], bool]:
    """Return the kernel's messages that wait in the socket, and whether they are all that were sent."""
    found: list[bytes] = []
    complete = True
    while True:
        try:
            data, sender = cast("tuple[bytes, tuple[int, int]]", opened.recvfrom(65536))
        except BlockingIOError:
            return found, complete
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            complete = False
            continue
        if sender[0] == 0:  # a process could send as well; the kernel's own number is 0
            found.append(data)


@final
class _Appended(DirectoryWatch):
    """A file of JSON objects, one in a line, to which somebody appends: what stands there at the start is not news.

    Args:
        file: It need not be there yet; its directory must be.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._offset = 0

    @override
    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.watch(self._file.parent, writes=True)
        with suppress(OSError):
            self._offset = os.stat(self._file).st_size
        return self

    def take(self) -> list[dict[str, Any]]:
        """Return what was appended since."""
        try:
            lines = reading.read(self._file)[self._offset :].splitlines(keepends=True)
        except OSError:
            return []
        whole = [line for line in lines if line.endswith(b"\n")]
        self._offset += sum(map(len, whole))
        return [event for line in whole if isinstance(event := _parsed(line), dict)]


def _parsed(line: bytes) -> Any:
    """Return the value of a line; None: it is no JSON, and nobody's event."""
    try:
        return parse_json(line)
    except ValueError:
        return None


# -- devices -----------------------------------------------------------------------------------------------------------

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
        return self._of_line(parse_uevent(message))

    @override
    def _of_line(self, properties: dict[str, Any]) -> list[Uevent]:
        event = Uevent.of(properties)
        return [event] if self._subsystems is None or event.subsystem in self._subsystems else []


def parse_uevent(data: bytes) -> dict[str, str]:
    """Return the properties of a message: ``add@/devices/...``, then ``NAME=value``, each ended by a NUL."""
    lines = data.decode(errors="replace").split("\0")[1:]
    return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals}


# -- network interfaces ------------------------------------------------------------------------------------------------

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
        return parse_links(message)

    @override
    def _of_line(self, properties: dict[str, Any]) -> list[LinkEvent]:
        return [LinkEvent(**properties)]


def parse_links(data: bytes) -> list[LinkEvent]:
    """Return the events of one datagram with any number of messages; truncated and other ones are left out."""
    found: list[LinkEvent] = []
    for kind, message in _messages(data):
        if kind in (_NEWLINK, _DELLINK) and len(message) >= _LINK.size:
            _, _, index, flags, _ = _LINK.unpack_from(message)
            attributes = _attributes(message[_LINK.size :])
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


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of one datagram, each by its type; what is cut off is left out."""
    while len(data) >= HEADER.size:
        length, kind = HEADER.unpack_from(data)[:2]
        if not HEADER.size <= length <= len(data):
            return
        yield kind, data[HEADER.size : length]
        data = data[_aligned(length) :]


def _attributes(data: bytes) -> dict[int, bytes]:
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


# -- IP addresses, which sysfs does not tell ---------------------------------------------------------------------------

ADDRESSES: Final = "ADDRESSES"
"""The file at the root of a tree that is no real node: a line of it is an interface's name and an address."""

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
            if not data or any(kind in (_DONE, _ERROR) for kind, _ in _messages(data)):
                return tuple(dict.fromkeys(found))
    return ()


def parse_addresses(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield the addresses of one datagram that others can reach, each with the number of its interface."""
    for kind, message in _messages(data):
        if kind != _NEWADDR or len(message) < _ADDR.size:
            continue
        _, prefix, _, scope, index = _ADDR.unpack_from(message)
        attributes = _attributes(message[_ADDR.size :])
        packed = attributes.get(_LOCAL) or attributes.get(_ADDRESS, b"")  # of a point-to-point link the first is ours
        if scope < _LINK_SCOPE and len(packed) in (4, 16):
            yield index, f"{ip_address(packed)}/{prefix}"
