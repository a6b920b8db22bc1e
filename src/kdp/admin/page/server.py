"""`PageServer`: answers the status page over HTTP while a command runs. asyncio only.

`kdp.daemon.listener` bounds the cost of a client. All clients share one answer for `PAUSE` seconds. So any number of
browsers costs a plugin one question in that time.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING, Final, NoReturn, final

import attrs

from ...concurrency import threads
from ...daemon.listener import REFUSED, Client, Listener, Response, is_familiar
from .shell import StatusPage

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from .view import AskedPlugin

PAUSE: Final = 0.5
"""Seconds for which all clients get the same answer."""

MAKING_SHARE: Final = 9
"""Lifetime of a page as a multiple of the processor time that it took. So a page takes a tenth of a processor."""


@final
@attrs.frozen
class _Made:
    """A page as HTML, its content for the script, and the seconds that both took."""

    html: str
    tree: str
    seconds: float


async def serve_until_interrupted(
    listening: socket.socket, look: Callable[[], Sequence[AskedPlugin]], begun: Callable[[], object]
) -> None:
    """Serve the page until SIGINT or SIGTERM. The end does not wait for the answer of a plugin.

    Args:
        listening: A listening socket. It is closed at the end.
        look: As for `PageServer`.
        begun: Called as soon as signals end this.
    """
    loop = asyncio.get_running_loop()
    serving = asyncio.create_task(PageServer(listening, look).serve())
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, serving.cancel)
    begun()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


@final
class PageServer:
    """Serves the page at ``/`` and its content at ``/page.json``. It answers only familiar names (`is_familiar`).

    Args:
        listening: A listening socket, which `serve` closes.
        look: Returns the plugins. Called in a thread, because it blocks for their answers; never twice at a time.
    """

    def __init__(self, listening: socket.socket, look: Callable[[], Sequence[AskedPlugin]]) -> None:
        self._listening = listening
        self._look = look
        self._page = StatusPage()
        self._made: _Made | None = None
        self._fresh_until = 0.0
        self._making: asyncio.Task[_Made] | None = None

    async def serve(self) -> NoReturn:
        """Answer until cancelled; then the socket and all connections are closed, and no thread is waited for."""
        await Listener(self._listening, self._answer).serve()

    async def _answer(self, path: str, client: Client) -> Response:
        if not is_familiar(client.host):
            return Response(421, REFUSED)
        if path == "/":
            return Response(200, (await self._newest()).html, "text/html", self._page.headers)
        if path == "/page.json":
            return Response(200, (await self._newest()).tree, "application/json", self._page.tree_headers)
        return Response(404, "here is /\n")

    async def _newest(self) -> _Made:
        if self._made is not None and time.monotonic() < self._fresh_until:
            return self._made
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(threads.run(self._make, name="kdp-page"))
        made = await asyncio.shield(self._making)  # the other clients need the answer if this one goes
        if made is not self._made:
            self._made = made
            self._fresh_until = time.monotonic() + max(PAUSE, MAKING_SHARE * made.seconds)
        return made

    def _make(self) -> _Made:
        plugins = self._look()
        began = time.thread_time()
        page, tree = self._page.live(plugins), self._page.tree(plugins)
        return _Made(page, tree, time.thread_time() - began)
