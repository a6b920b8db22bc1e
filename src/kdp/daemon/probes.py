"""``/livez`` and ``/readyz`` for the kubelet's probes, off unless an address is given.

* ``/livez`` (and ``/healthz``): 200 while the event loop turns, 503 when it has not for a second: a hook blocks it.
* ``/readyz``: 200 when every resource has a living stream to the kubelet, else 503; the JSON body names each resource
  with its state, for whoever is called at night.

The standard library's server in threads of its own, because a blocked event loop must still be answered for. It sleeps
in ``accept`` without periodic wake-ups. They live as long as the server and report nothing to the loop, so they are
none of `kdp.concurrency.threads`. Imported only when asked for: it costs some 4 MB.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import http.server
import json
import logging
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, final

import attrs
from typing_extensions import override

from ..errors import ConfigurationError
from .parsers import Address

logger = logging.getLogger(__name__)

LOOP_DEADLINE = 1.0
"""Seconds within which the event loop must answer; the kubelet's own probes wait 1 s by default."""

START_AGAIN = 1.0
"""Seconds until a refused thread is started again; meanwhile, probes wait in the backlog."""

_BLOCKED = f"the event loop has not turned for {LOOP_DEADLINE:g} s: a hook of the backend blocks it"

_T = TypeVar("_T")


@final
@attrs.frozen
class Readiness:
    """What ``/readyz`` says.

    Attributes:
        is_ready: Whether it answers 200.
        details: The rest of its body, JSON-like.
    """

    is_ready: bool
    details: Mapping[str, object]


@final
class Probes:
    """The HTTP server. Made and closed in the event loop that it watches; there it calls ``readiness``.

    Raises:
        ConfigurationError: Nobody can listen there.
    """

    def __init__(self, address: Address, readiness: Callable[[], Readiness]) -> None:
        self._loop = asyncio.get_running_loop()
        self._readiness = readiness
        self._is_closing = False
        try:
            self._server = _Server(address, self)
        except OSError as error:
            raise ConfigurationError(
                f"http address {str(address)!r}: cannot listen there ({error.strerror or error}); choose another one, "
                f"or port 0 for any free one"
            ) from error
        self._thread: threading.Thread | None = None
        self._start_later: asyncio.TimerHandle | None = None
        self._start()
        logger.info("health probes at %s/livez and %s/readyz", self.url, self.url, extra={"address": self.url})

    @property
    def url(self) -> str:
        """The server's address, with the port that it really has."""
        host, port = self._server.server_address[:2]
        return f"http://{Address(str(host), int(port))}"

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._start_later is not None:
            self._start_later.cancel()
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which sleeps without a timeout
        if self._thread is not None:
            self._thread.join(1.0)
        self._server.server_close()

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name="kdp-probes", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # as at a container's limit of processes
            if self._start_later is None:
                logger.error("nobody answers the health probes yet: %s; trying again", error)
            self._start_later = self._loop.call_later(START_AGAIN, self._start)
        else:
            self._thread = thread

    def _serve(self) -> None:
        while not self._is_closing:
            self._server.handle_request()

    def livez(self) -> tuple[int, str, str]:
        """Return status, content type and body; called in a thread."""
        if self._in_loop(lambda: True) is None:
            return 503, "text/plain", f"{_BLOCKED}\n"
        return 200, "text/plain", "ok\n"

    def readyz(self) -> tuple[int, str, str]:
        """Return status, content type and body; called in a thread."""
        readiness = self._in_loop(self._readiness) or Readiness(False, {"reason": _BLOCKED})
        body = json.dumps({"ready": readiness.is_ready, **readiness.details}, indent=2)
        return 200 if readiness.is_ready else 503, "application/json", f"{body}\n"

    def _in_loop(self, function: Callable[[], _T]) -> _T | None:
        answer = concurrent.futures.Future[_T]()

        def call() -> None:
            try:
                answer.set_result(function())
            except Exception as error:  # noqa: BLE001 - an answer too: it must not end the loop's callback silently
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(call)
            return answer.result(LOOP_DEADLINE)
        except (TimeoutError, RuntimeError):  # the latter: the loop is closed
            return None


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, address: Address, probes: Probes) -> None:
        self.probes = probes
        # An empty host means every address, of both families where the machine has both.
        both = not address.host and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if both or ":" in address.host else socket.AF_INET
        super().__init__((address.host, address.port), _Handler, bind_and_activate=False)
        try:
            if both:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self.server_bind()
            self.server_activate()
        except OSError:
            self.server_close()
            raise

    @override
    def server_bind(self) -> None:
        # The class between would look up the host's name in the DNS.
        socketserver.TCPServer.server_bind(self)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a probe's connection broke: %s", sys.exc_info()[1])


class _Handler(http.server.BaseHTTPRequestHandler):
    server_version = "kdp"
    sys_version = ""
    timeout = 5.0  # a client that says nothing keeps its thread no longer

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        probes = self.server.probes
        path = self.path.partition("?")[0]
        if path in ("/livez", "/healthz"):
            status, kind, body = probes.livez()
        elif path == "/readyz":
            status, kind, body = probes.readyz()
        else:
            status, kind, body = 404, "text/plain", "here are /livez and /readyz\n"
        encoded = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(encoded)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(encoded)

    do_HEAD = do_GET

    @override
    def log_message(self, format: str, *args: object) -> None:
        logger.debug("probe: " + format, *args)  # noqa: G003 - the format is the base class's
