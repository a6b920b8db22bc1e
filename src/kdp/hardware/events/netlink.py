"""`EventWatch`: wait for the kernel's netlink events, or for those in a file at the root of a tree.

Multicast netlink may lose messages (ENOBUFS) and says so; the caller looks at everything then.
"""

from __future__ import annotations

import errno
import os
import socket
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

import anyio
from typing_extensions import override

from ...storage import reading
from ...storage.documents import parse_json
from .directories import DirectoryWatch, check_entered

if TYPE_CHECKING:
    from typing import Self

    from ..directory import NodeFiles

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
