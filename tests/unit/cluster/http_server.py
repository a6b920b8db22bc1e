"""A small HTTP server whose answers a test gives, for `kdp.cluster.client`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import attrs

__all__ = ["Answer", "Asked", "HttpServer", "served"]


@attrs.frozen
class Asked:
    """A request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@attrs.frozen(kw_only=True)
class Answer:
    """What the server says to a request.

    Attributes:
        status: The HTTP status.
        body: JSON, or bytes as they are.
        headers: More headers.
        chunks: Parts of an answer that has no end of its own; the connection is cut after them.
        then: What happens behind the chunks: the end of the answer, a cut, or silence.
    """

    status: int = 200
    body: Any = None
    headers: dict[str, str] = attrs.field(factory=dict[str, str])
    chunks: tuple[bytes, ...] = ()
    then: str = "end"


class HttpServer:
    """Answers what `reply` says; keeps what was asked.

    Attributes:
        url: Its address.
        asked: All requests.
        reply: What to answer; None: nothing, for ever.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self.reply: Callable[[Asked], Answer | None] = lambda _: Answer(body={})

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                asked = await _read(reader)
                self.asked.append(asked)
                answer = self.reply(asked)
                if answer is None:
                    await asyncio.Event().wait()
                    return
                await self._write(writer, answer)
                if answer.then == "cut":
                    break
        writer.close()

    async def _write(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        headers = {"Content-Type": "application/json", **answer.headers}
        headers |= {"Transfer-Encoding": "chunked"} if answer.chunks else {"Content-Length": str(len(body))}
        head = f"HTTP/1.1 {answer.status} Said\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n"
        writer.write(head.encode() + (b"" if answer.chunks else body))
        for chunk in answer.chunks:
            writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            await writer.drain()
        if answer.chunks and answer.then == "end":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        if answer.then == "silence":
            await asyncio.Event().wait()


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
    content = await reader.readexactly(int(headers.get("content-length", 0)))
    parts = urlsplit(target)
    return Asked(method, parts.path, dict(parse_qsl(parts.query)), headers, json.loads(content) if content else None)


@asynccontextmanager
async def served() -> AsyncGenerator[HttpServer]:
    """Serve on a port of this machine."""
    made = HttpServer()
    tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks[asyncio.create_task(made.serve(reader, writer))] = writer

    server = await asyncio.start_server(serve, "127.0.0.1")
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        for _ in range(4):  # turns until `serve` has it: a closed server of CPython 3.11 never closes what it accepted
            await asyncio.sleep(0)
        server.close()
        for task, writer in tasks.items():
            task.cancel()
            writer.transport.abort()  # a task that has not begun closes nothing, and nobody may read what is left
        await asyncio.gather(*tasks, return_exceptions=True)
