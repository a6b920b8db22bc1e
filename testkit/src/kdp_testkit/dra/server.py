"""`SimulatedApiServer`: a Kubernetes API server for tests of DRA drivers, over real HTTP on the loopback interface.

Its answers are `api.Api`'s; here are sockets only. HTTP is h11's, the sans-IO library that lightkube's client stands on
as well: a web framework would bring a server of its own into every vendor's tests for six methods.
"""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import anyio
import h11
from anyio import AsyncContextManagerMixin
from anyio.abc import SocketAttribute
from typing_extensions import override

from ..lifetime import ungrouped
from .api import Api, ApiAnswer, Request, Watch
from .apifaults import ApiFaults
from .profiles import DEFAULT_PROFILE, DraProfile, profile_named
from .status import ApiRefused

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path
    from typing import Self

    from anyio.abc import ByteStream

Object = dict[str, Any]
_CHUNK: Final = 64 * 1024
_MAX_BODY: Final = 3 * 1024 * 1024
"""Bytes: the API server's own limit of a request."""


class SimulatedApiServer(AsyncContextManagerMixin):
    """An API server with ResourceSlices, ResourceClaims, DeviceClasses, Nodes, Pods and Events.

    An async context manager: it answers from entry to exit. Everything must be called from the event loop that entered
    it. It has no scheduler and no controllers: what they would write, a test writes (`kdp_testkit.dra.objects`).

    Args:
        profile: Which version: ``k134``, ``k136``, ``k137`` or a `DraProfile`.
        gates: Feature gates that are on or off, unlike that version's default.

    Attributes:
        api: Its answers, without sockets: the store, the admission.
        faults: How it misbehaves on command.
        url: Where it answers.
    """

    def __init__(self, profile: str | DraProfile = DEFAULT_PROFILE, *, gates: Mapping[str, bool] | None = None) -> None:
        self.api = Api(profile_named(profile), gates)
        self.faults = ApiFaults(self.api)
        self.url = ""
        self._changed = anyio.Event()

    @override
    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        with ungrouped():
            async with (
                await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
                anyio.create_task_group() as tasks,
            ):
                port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
                self.url = f"http://127.0.0.1:{port}"
                tasks.start_soon(listener.serve, self._serve)
                try:
                    yield self
                finally:
                    tasks.cancel_scope.cancel()

    # -- in this process -----------------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: object = None, *, token: str | None = None) -> Object:
        """Ask it without HTTP, as the test itself unless a token is given; faults count as for all.

        Raises:
            ApiRefused: It refuses, or is away (status 0).
        """
        if self.faults.is_away:
            raise ApiRefused(0, f'{method.title()} "{self.url}{path}": dial tcp: connect: connection refused')
        answer = self._answer(_request(method, path, json.dumps(body).encode() if body is not None else b"", token))
        if isinstance(answer, Watch):
            raise ApiRefused(400, "a watch needs HTTP")
        return answer.body

    def collect_garbage(self) -> None:
        """Delete what belongs to a Node that is gone; a cluster's controller does so in a while."""
        self.api.collect_garbage()
        self._wake()

    def _answer(self, request: Request) -> ApiAnswer | Watch:
        try:
            self.faults.meet(request)
            return self.api.answer(request)
        finally:
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    async def _serve(self, stream: ByteStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, h11.RemoteProtocolError):
            async with stream:
                connection = h11.Connection(h11.SERVER)
                while not self.faults.is_away and await self._exchange(stream, connection):
                    connection.start_next_cycle()

    async def _exchange(self, stream: ByteStream, connection: h11.Connection) -> bool:
        """Answer one request; return whether the connection can be used again."""
        request = await _received(stream, connection)
        if request is None:
            return False
        await anyio.sleep(self.faults.delay)
        if self.faults.is_away:
            return False
        retry_after: int | None = None
        content: bytes | None = None
        try:
            answer = self._answer(request)
            if isinstance(answer, Watch):
                await self._watch(stream, connection, answer)
                return connection.our_state is h11.DONE and connection.their_state is h11.DONE
        except ApiRefused as refused:
            answer = ApiAnswer(status=refused.status, body=refused.as_json())
            retry_after, content = refused.retry_after, refused.content
        body = json.dumps(answer.body).encode() if content is None else content
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        if retry_after is not None:
            headers.append(("Retry-After", str(retry_after)))
        await _send(stream, connection, h11.Response(status_code=answer.status, headers=headers))
        await _send(stream, connection, h11.Data(data=body))
        await _send(stream, connection, h11.EndOfMessage())
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE

    async def _watch(self, stream: ByteStream, connection: h11.Connection, watch: Watch) -> None:
        headers = [("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")]
        await _send(stream, connection, h11.Response(status_code=200, headers=headers))

        async def tell(kind: str, item: Object) -> None:
            line = json.dumps({"type": kind, "object": item}) + "\n"
            await _send(stream, connection, h11.Data(data=line.encode()))

        for item in watch.first:
            await tell("ADDED", item)
        dropped, deadline, version = self.faults.dropped, time.monotonic() + watch.seconds, watch.version
        while not dropped.is_set() and time.monotonic() < deadline:
            changed = self._changed
            try:
                for change in list(self.api.store.since(version, watch.kind)):
                    version = change.version
                    event = watch.event(change)
                    if event is not None:
                        await tell(*event)
            except ApiRefused as refused:
                await tell("ERROR", refused.as_json())
                break
            with anyio.move_on_after(max(0.0, deadline - time.monotonic())):
                await _first_of(changed, dropped)
        if dropped.is_set():
            raise anyio.BrokenResourceError
        if watch.bookmarks:
            meta = {"resourceVersion": str(self.api.store.version)}
            bookmark = {"kind": watch.kind.kind, "apiVersion": watch.kind.api_version, "metadata": meta}
            await tell("BOOKMARK", bookmark)
        await _send(stream, connection, h11.EndOfMessage())


def _request(method: str, target: str, body: bytes, token: str | None, kind: str = "") -> Request:
    parts = urlsplit(target)
    return Request(
        method=method,
        path=unquote(parts.path),
        query=dict(parse_qsl(parts.query, keep_blank_values=True)),
        token=token,
        body=body,
        kind=kind,
    )


async def _received(stream: ByteStream, connection: h11.Connection) -> Request | None:
    """Return the next request; None: the client is gone."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            try:
                connection.receive_data(await stream.receive(_CHUNK))
            except anyio.EndOfStream:
                connection.receive_data(b"")
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _MAX_BODY:
                return None
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            headers = {name.decode(): value.decode() for name, value in head.headers}
            token = headers.get("authorization", "").removeprefix("Bearer ")
            kind = headers.get("content-type", "")
            return _request(head.method.decode(), head.target.decode(), bytes(body), token, kind)
        else:
            return None


async def _send(stream: ByteStream, connection: h11.Connection, event: h11.Event) -> None:
    data = connection.send(event)
    if data:
        await stream.send(data)


async def _first_of(*events: anyio.Event) -> None:
    async with anyio.create_task_group() as tasks:

        async def wait(event: anyio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(wait, event)


def write_kubeconfig(folder: Path, url: str) -> Path:
    """Write a kubeconfig for the server at this address into a folder, and return its path."""
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "simulated", "cluster": {"server": url}}],
                "users": [{"name": "driver", "user": {}}],
                "contexts": [{"name": "simulated", "context": {"cluster": "simulated", "user": "driver"}}],
                "current-context": "simulated",
            }
        )
    )
    return path
