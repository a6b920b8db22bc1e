"""What the kubelet's local APIs have in common: a socket of their own, and a limit of calls a second.

The socket is a `Listener`, as kubelet.sock is: a killed kubelet leaves it behind as a dead file and breaks the
connections abruptly. A new kubelet removes what lies there and binds anew.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from kdp.kubelet.server import start_server, stop_server

from ..protocol.listener import Listener
from ..protocol.registry import Refusal

if TYPE_CHECKING:
    from pathlib import Path

    from google.protobuf.message import Message

# Contract section 0.1: both APIs.
CALLS_PER_SECOND: Final = 100
BURST: Final = 10


class RateLimit:
    """A bucket of tokens as the kubelet's: 10 at once, then 100 a second.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = float(BURST)
        self._filled = clock()

    def take(self) -> bool:
        """Take a token; False if there is none."""
        now = self._clock()
        self._tokens = min(BURST, self._tokens + (now - self._filled) * CALLS_PER_SECOND)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


Unary = tuple["type[Message]", Callable[[Any], "Awaitable[Message] | Message"]]
"""The request's class, and what answers it; raises `Refusal`."""
Stream = tuple["type[Message]", Callable[[Any], AsyncIterator["Message"]]]
"""The request's class, and what yields the answers; raises `Refusal`."""


class ApiServer:
    """One API at one socket, for one life of a kubelet.

    Args:
        path: The socket.
        service: The service's full name on the wire.
        unary: Its methods with one answer, by name; each call takes a token of the limit.
        streams: Its methods with many answers, by name; they are not limited.
        asked: Told of each call with one answer: its name, and the error that it got.
    """

    def __init__(
        self,
        path: Path,
        service: str,
        unary: Mapping[str, Unary],
        streams: Mapping[str, Stream] | None = None,
        *,
        asked: Callable[[str, str | None], None] | None = None,
    ) -> None:
        self.path = path
        self._asked = asked
        self._limit = RateLimit()
        self._address = f"kdp-simulated-api-{os.getpid()}-{secrets.token_hex(8)}"
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for name, (request, answer) in unary.items():
            handlers[name] = grpc.unary_unary_rpc_method_handler(
                self._limited(name, answer), request_deserializer=request.FromString, response_serializer=_encode
            )
        for name, (request, answers) in (streams or {}).items():
            handlers[name] = grpc.unary_stream_rpc_method_handler(
                _streaming(answers), request_deserializer=request.FromString, response_serializer=_encode
            )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._server.add_insecure_port(f"unix-abstract:{self._address}")
        self._listener: Listener | None = None

    async def start(self) -> None:
        """Bind and listen; `close` must follow, also after an error.

        Raises:
            OSError: The socket cannot be bound.
        """
        self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        await start_server(self._server)
        self._listener = Listener(self.path, self._address)
        self._listener.listen()

    async def serve(self) -> None:
        """Take connections until cancelled; `start` must have been called."""
        if self._listener is not None:
            await self._listener.serve()

    def slam(self) -> None:
        """Break everything at once and abruptly; `serve` must still be cancelled."""
        if self._listener is not None:
            self._listener.slam()

    async def close(self) -> None:
        """Stop the server. Idempotent; the socket's file stays, as a killed kubelet leaves it."""
        if self._listener is not None:
            self._listener.close()
        await stop_server(self._server, None)

    def _limited(self, name: str, answer: Callable[[Any], Awaitable[Message] | Message]) -> Any:
        async def serve(request: Any, context: Any) -> Message:
            error: str | None = None
            try:
                if not self._limit.take():
                    raise Refusal("rejected by rate limit", "RESOURCE_EXHAUSTED")
                reply = answer(request)
                return await reply if isinstance(reply, Awaitable) else reply
            except Refusal as refusal:
                error = str(refusal)
                await context.abort(grpc.StatusCode[refusal.code], error)
                raise
            finally:
                if self._asked is not None:
                    self._asked(name, error)

        return serve


def _streaming(answers: Callable[[Any], AsyncIterator[Message]]) -> Any:
    async def serve(request: Any, context: Any) -> AsyncIterator[Message]:
        try:
            async for answer in answers(request):
                yield answer
        except Refusal as refusal:
            await context.abort(grpc.StatusCode[refusal.code], str(refusal))

    return serve


def _encode(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded
