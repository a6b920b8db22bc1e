"""What a client can cost: connections, bytes, and time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import SocketStream

from kdp.daemon.listener import LARGEST, Answer, Client, Listener
from kdp_testkit.patience import PATIENCE


@asynccontextmanager
async def serving(released: anyio.Event | None = None) -> AsyncIterator[int]:
    """Serve answers that name the path, after the event; give the port."""

    async def answer(path: str, client: Client) -> Answer:
        if released is not None:
            await released.wait()
        return Answer(200, f"{path} {client.is_local}\n")

    listening = socket.create_server(("127.0.0.1", 0))
    port: int = listening.getsockname()[1]
    task = asyncio.create_task(Listener(listening, answer).serve())
    try:
        yield port
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert listening.fileno() == -1


async def read(client: SocketStream) -> bytes:
    """Read to the end."""
    said = b""
    with anyio.fail_after(PATIENCE), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            said += await client.receive()
    return said


async def asked(port: int, request: bytes) -> bytes:
    async with await anyio.connect_tcp("127.0.0.1", port) as client:
        await client.send(request)
        return await read(client)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /livez?x=1 HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"POST /livez HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"\xff\x00\r\n\r\n", b"400 Bad Request"),
        (b"GET /livez HTTP/1.1\r\nx: " + b"a" * LARGEST + b"\r\n\r\n", b"431 Request Header Fields Too Large"),
    ],
)
async def test_a_request_is_answered_by_its_first_line(request_: bytes, status: bytes) -> None:
    async with serving() as port:
        assert (await asked(port, request_)).split(b"\r\n")[0] in (b"HTTP/1.0 " + status, b"")
        answer = await asked(port, b"GET /readyz HTTP/1.1\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n/readyz True\n")
    assert b"\r\nKdp-Protocol: 1\r\n" in answer
