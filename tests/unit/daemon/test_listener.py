"""What a client can cost: connections, bytes, and time."""

from __future__ import annotations

import asyncio
import http
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import SocketStream

from kdp.daemon import listener as listener_module
from kdp.daemon.listener import LARGEST, MOST, PHRASES, Answer, Client, Listener
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
        (b"GET http://a/livez HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"GET /livez HTTP/2\r\n\r\n", b"400 Bad Request"),
        (b"\xff\x00\r\n\r\n", b"400 Bad Request"),
        (b"\r\n\r\n", b"400 Bad Request"),
        (b"GET /" + b"a" * LARGEST, b"431 Request Header Fields Too Large"),
        (b"GET /livez HTTP/1.1\r\nx: " + b"a" * LARGEST + b"\r\n\r\n", b"431 Request Header Fields Too Large"),
    ],
)
async def test_a_request_is_answered_by_its_first_line(request_: bytes, status: bytes) -> None:
    async with serving() as port:
        assert (await asked(port, request_)).split(b"\r\n")[0] in (b"HTTP/1.0 " + status, b"")
        answer = await asked(port, b"GET /readyz HTTP/1.1\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n/readyz True\n")
    assert b"\r\nKdp-Protocol: 1\r\n" in answer


async def test_a_request_in_pieces_is_one_request() -> None:
    async with serving() as port, await anyio.connect_tcp("127.0.0.1", port) as client:
        for byte in b"GET /a HTTP/1.1\r\n\r\n":
            await client.send(bytes([byte]))
        assert (await read(client)).endswith(b"/a True\n")


async def test_a_new_connection_displaces_the_oldest_that_has_not_asked() -> None:
    released = anyio.Event()
    async with serving(released) as port, AsyncExitStack() as stack:
        has_asked = await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
        await has_asked.send(b"GET /first HTTP/1.1\r\n\r\n")
        await anyio.sleep(0.1)  # its request must be there before the others displace it
        silent = [await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port)) for _ in range(MOST + 4)]
        for displaced in silent[:5]:
            assert await read(displaced) == b""
        released.set()
        assert (await read(has_asked)).endswith(b"/first True\n")
        await silent[5].send(b"GET /later HTTP/1.1\r\n\r\n")
        assert (await read(silent[5])).endswith(b"/later True\n")


async def test_if_all_have_asked_the_oldest_is_displaced() -> None:
    released = anyio.Event()
    async with serving(released) as port, AsyncExitStack() as stack:
        clients: list[SocketStream] = []
        for number in range(MOST + 1):
            client = await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
            await client.send(b"GET /%d HTTP/1.1\r\n\r\n" % number)
            clients.append(client)
        assert await read(clients[0]) == b""
        released.set()
        assert (await read(clients[-1])).endswith(b"/%d True\n" % MOST)


@pytest.mark.parametrize("trickle", [b"", b"a"])
async def test_a_connection_has_one_deadline_whatever_its_client_sends(
    monkeypatch: pytest.MonkeyPatch, trickle: bytes
) -> None:
    monkeypatch.setattr(listener_module, "DEADLINE", 0.3)
    async with serving() as port, await anyio.connect_tcp("127.0.0.1", port) as client:
        with anyio.fail_after(PATIENCE), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                if trickle:
                    await client.send(trickle)
                with anyio.move_on_after(0.02):
                    await client.receive()


async def test_an_answer_that_raises_ends_its_own_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(path: str, client: Client) -> Answer:
        if path == "/broken":
            raise ValueError("broken")
        return Answer(200, "ok\n")

    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    task = asyncio.create_task(Listener(listening, answer).serve())
    assert await asked(port, b"GET /broken HTTP/1.1\r\n\r\n") == b""
    assert (await asked(port, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"ok\n")
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert "a health probe could not be answered" in caplog.text


async def test_an_answer_has_its_header_fields_and_its_type_is_not_guessed() -> None:
    async def answer(path: str, client: Client) -> Answer:
        return Answer(200, "hello", "text/html", (("Referrer-Policy", "no-referrer"), ("X-One", "1")))

    listening = socket.create_server(("127.0.0.1", 0))
    task = asyncio.create_task(Listener(listening, answer).serve())
    try:
        async with await anyio.connect_tcp("127.0.0.1", listening.getsockname()[1]) as client:
            await client.send(b"GET / HTTP/1.1\r\n\r\n")
            head, _, body = (await read(client)).partition(b"\r\n\r\n")
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    fields = head.decode().split("\r\n")[1:]
    assert {"X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer", "X-One: 1"} < {*fields}
    assert body == b"hello"


def test_phrases_are_those_of_http() -> None:
    assert {status: http.HTTPStatus(status).phrase for status in PHRASES} == PHRASES
