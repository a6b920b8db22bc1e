"""A small HTTP server whose cost has a bound for any client. It answers GET and HEAD, one request per connection.

* At most `MOST` connections of one `Listener` are open. A new one displaces the oldest whose request is unfinished, or,
  if all requests are complete, the oldest. So clients that send no request cannot keep the kubelet's probes out.
* A request has at most `LARGEST` bytes, and a connection ends after `DEADLINE` seconds, whatever its client does.
* A page that names pods is for names that no stranger owns; see `is_familiar`.
* At most one connection is accepted in `BREATH` seconds. If the process has no free descriptor, the next attempt
  follows after `PAUSE` seconds.

It runs in the event loop that awaits `Listener.serve`. It knows no route and no device.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn, final

import attrs

from ..errors import ConfigurationError
from ..startup import shown
from .parsers import Address

logger = logging.getLogger(__name__)

MOST: Final = 16
"""Open connections."""

LARGEST: Final = 8 * 1024
"""Bytes of a request."""

DEADLINE: Final = 5.0
"""Seconds from a connection's beginning to its end."""

BREATH: Final = 0.002
"""Seconds between two connections: 500 in a second cost a tenth of a core, and the kubelet needs one in two."""

PAUSE: Final = 1.0
"""Seconds until another connection is accepted after one could not be."""

BACKLOG: Final = 1024
"""Connections that wait in the kernel, for two seconds at most. With fewer, a probe whose packet is dropped during a
flood is late."""

PHRASES: Final = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
"""The statuses that are answered. `http` has them all, but costs a start a millisecond, and may not be loaded later: by
then the process can be without a free descriptor, or another user."""


@final
@attrs.frozen
class Response:
    """What a request is answered.

    Attributes:
        status: The HTTP status, one of `PHRASES`.
        body: The text.
        kind: Its media type.
        headers: Further header fields.
    """

    __repr__ = shown

    status: int
    body: str
    kind: str = "text/plain"
    headers: tuple[tuple[str, str], ...] = ()


@final
@attrs.frozen
class Client:
    """Who asks.

    Attributes:
        is_local: Whether it is on this machine and named its loopback address, or has opened a unix socket.
        is_owner: Whether it has opened a unix socket, which only root and the process's own user can.
        host: By which name it asks: the header ``Host``; several are joined by commas; empty: there is none.
    """

    __repr__ = shown

    is_local: bool
    is_owner: bool
    host: str = ""


Answering = Callable[[str, Client], Awaitable[Response]]
"""Answers a path without its query."""


class _Refused(Exception):
    def __init__(self, status: int) -> None:
        self.answer = Response(status, f"{PHRASES[status].lower()}\n")


@attrs.define(eq=False)
class _Connection:
    __repr__ = shown
    socket: socket.socket
    is_asked: bool = False


@final
class Listener:
    """Serves one listening socket, which it closes.

    Args:
        listening: A listening socket.
        answer: Called for each request, at most `MOST` at a time.
    """

    def __init__(self, listening: socket.socket, answer: Answering) -> None:
        listening.setblocking(False)
        # Accepted sockets inherit it: no client fills more memory of the kernel than of the process.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LARGEST)
        self._listening = listening
        self._answer = answer
        self._connections: dict[asyncio.Task[None], _Connection] = {}  # the oldest first
        self._has_complained = False

    async def serve(self) -> NoReturn:
        """Accept and answer until cancelled; then the socket and all connections are closed."""
        try:
            while True:
                await _readable(self._listening)  # not `sock_accept`: if cancelled, it can lose a connection unclosed
                try:
                    accepted, _ = self._listening.accept()
                except OSError as error:
                    gone = error.errno in (errno.EAGAIN, errno.ECONNABORTED)
                    await asyncio.sleep(BREATH if gone else self._complain(error))
                else:
                    accepted.setblocking(False)
                    self._take(accepted)
                    await asyncio.sleep(BREATH)
        finally:
            self._listening.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _complain(self, error: OSError) -> float:
        if not self._has_complained:
            logger.warning("no connection to the health probes can be accepted: %s; trying again", error.strerror)
        self._has_complained = True
        return PAUSE

    def _take(self, accepted: socket.socket) -> None:
        self._has_complained = False
        if len(self._connections) >= MOST:
            oldest = min(self._connections, key=lambda task: self._connections[task].is_asked)  # the first of equals
            self._connections.pop(oldest)
            oldest.cancel()
        connection = _Connection(accepted)
        task = asyncio.create_task(self._converse(connection))
        self._connections[task] = connection
        task.add_done_callback(self._forget)
        task.add_done_callback(lambda _: accepted.close())  # also of a task that was cancelled before it began

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._connections.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("an HTTP request could not be answered", exc_info=error)

    async def _converse(self, connection: _Connection) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(DEADLINE):
                try:
                    request = await self._request(connection.socket)
                    method, path = _parsed(request)
                    connection.is_asked = True
                    answer = await self._answer(path, _client_of(connection.socket, _host_of(request)))
                except _Refused as refused:
                    method, answer = "GET", refused.answer
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(connection.socket, _rendered(answer, has_body=method != "HEAD"))
                connection.socket.shutdown(socket.SHUT_WR)

    async def _request(self, client: socket.socket) -> bytes:
        loop = asyncio.get_running_loop()
        request = b""
        while b"\r\n\r\n" not in request:
            if len(request) >= LARGEST:
                raise _Refused(431)
            received = await loop.sock_recv(client, LARGEST - len(request))
            if not received:
                raise ConnectionAbortedError
            request += received
        return request


def listening_at(address: Address) -> socket.socket:
    """Return a listening socket. An empty host means every address, of both families if the machine has both.

    Raises:
        ConfigurationError: Nobody can listen there.
    """
    both = not address.host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        # The library adds the address to the error's text. An unknown host name has no such number.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise ConfigurationError(
            f"http address {str(address)!r}: cannot listen there ({reason}); choose another one, or port 0 for any "
            f"free one"
        ) from error


def url_of(listening: socket.socket) -> str:
    """Return the address of a listening socket, with the port that it really has."""
    host, port = listening.getsockname()[:2]
    return f"http://{Address(str(host), int(port))}"


async def _readable(listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(listening, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listening)


def _parsed(request: bytes) -> tuple[str, str]:
    """Return method and path."""
    method, _, rest = request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    target, _, version = rest.partition(" ")
    if not version.startswith("HTTP/1.") or not target.startswith("/"):
        raise _Refused(400)
    if method not in ("GET", "HEAD"):
        raise _Refused(405)
    return method, target.partition("?")[0]


def _host_of(request: bytes) -> str:
    lines = request.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    fields = [line.partition(":") for line in lines]
    return ",".join(value.strip() for name, _, value in fields if name.strip().lower() == "host")


def _rendered(answer: Response, *, has_body: bool) -> bytes:
    body = answer.body.encode()
    further = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
    head = (
        f"HTTP/1.0 {answer.status} {PHRASES[answer.status]}\r\n"
        f"Server: kdp\r\n"
        f"Kdp-Protocol: 1\r\n"
        f"Content-Type: {answer.kind}; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\n"
        f"X-Content-Type-Options: nosniff\r\n"
        f"{further}"
        f"Connection: close\r\n\r\n"
    )
    return head.encode() + (body if has_body else b"")


def _client_of(client: socket.socket, host: str) -> Client:
    """Return who asks. On loopback are both ends: a proxy of the machine names another address of ours."""
    if client.family == socket.AF_UNIX:
        return Client(is_local=True, is_owner=True, host=host)
    is_local = all(_is_loopback(name[0]) for name in (client.getpeername(), client.getsockname()))
    return Client(is_local=is_local, is_owner=False, host=host)


def _is_loopback(address: str) -> bool:
    return address == "::1" or address.removeprefix("::ffff:").startswith("127.")


_ENDINGS: Final = (".localhost", ".svc", ".cluster.local")

REFUSED: Final = (
    "this page is for addresses and names of the cluster, and the request names another host: use kubectl "
    "port-forward and http://localhost, or let the proxy send 'Host: localhost'\n"
)


def is_familiar(host: str, node: str | None = None) -> bool:
    """Return whether a request's ``Host`` is an address or a name that no stranger owns.

    Against DNS rebinding: a page of somebody else's site, open in an administrator's browser, asks its own name, whose
    address meanwhile is ours. The browser takes both for one site and hands our answer over, but it says the name in
    ``Host``, and no script can change that. So a name that a stranger can own in the public DNS is refused.

    Allowed is what no stranger owns: an address, ``localhost``, a name without a dot (of a pod, a service, or a host
    that a search domain completes), a service's name in the cluster, and the names of this node.

    Args:
        host: The header's value, with or without a port; empty: it has none, as browsers do not do.
        node: The node's name, if it is known.
    """
    if host.startswith("["):
        literal, end, port = host[1:].partition("]")
        return bool(end) and _is_address(socket.AF_INET6, literal.partition("%")[0]) and _is_port(port)
    name, colon, port = host.partition(":")
    name = name.lower().removesuffix(".")
    if not _is_port(colon + port) or any(each in name for each in ", \t"):
        return False
    own = {os.uname().nodename.lower(), (node or "").lower()}
    return "." not in name or name.endswith(_ENDINGS) or name in own or _is_address(socket.AF_INET, name)


def _is_address(family: socket.AddressFamily, text: str) -> bool:
    try:
        return bool(socket.inet_pton(family, text))
    except (OSError, ValueError):  # no address; a zero byte
        return False


def _is_port(text: str) -> bool:
    return not text or (text[0] == ":" and text[1:].isascii() and (text[1:].isdigit() or not text[1:]))
