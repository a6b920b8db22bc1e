"""``/livez``, ``/readyz`` and further pages: on a unix socket for commands, and over TCP for the kubelet's probes.

* ``/livez`` (and ``/healthz``): 200 while the event loop turns, 503 when it has not for a second: a hook blocks it.
* Other pages, which `Page` describes.
* ``/readyz``: 200 when every resource has a living stream to the kubelet, else 503. For local clients, the JSON body
  names each resource with its state and reason; for others it is ``ok`` or ``not ready``.

The answers come from a thread with an event loop of its own, because a blocked event loop must still be answered for.
That thread lives as long as the server, so it is none of `kdp.concurrency.threads`. It wakes up every minute to see
whether its unix socket is still there, and otherwise only for clients. What a client can cost is bounded in
`kdp.daemon.listener`; it costs the watched event loop one callback for each question, however many clients ask.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final

import attrs

from ..errors import printable
from ..operations.status_facts import LOOP_BLOCKED
from ..startup import shown
from .listener import REFUSED, Client, Listener, Response, is_familiar, listening_at, url_of
from .own_socket import OwnSocket, PlaceTakenError
from .readiness import Readiness

if TYPE_CHECKING:
    from pathlib import Path

    from ..operations.status_document import StatusDocument
    from .parsers import Address

logger = logging.getLogger(__name__)

LOOP_DEADLINE = 1.0
"""Seconds within which the event loop must answer; the kubelet's own probes wait 1 s by default."""

STATUS_DEADLINE = 1.5
"""The same for the status document: the event loop may wait for the kubelet's list of holders."""

START_AGAIN = 1.0
"""Seconds until a refused thread is started again; meanwhile, probes wait in the backlog."""

TAKE_AGAIN = 10.0
"""Seconds until the unix socket is tried again, as when its place was a living predecessor's."""

LOOK_AGAIN = 60.0
"""Seconds between two looks whether the unix socket is still there; somebody may have cleaned up its directory."""

MAKING_SHARE: Final = 9
"""So many times as long as a page took to make it is kept: a page of 20,000 devices takes a tenth of the thread."""

MOST_OF_TEXT: Final = 4096
"""Characters of one text in a body."""

BLOCKED: Final = f"{LOOP_BLOCKED} for {LOOP_DEADLINE:g} s: a hook of the backend blocks it"

SLOW_START: Final = (
    f"{LOOP_BLOCKED} for {LOOP_DEADLINE:g} s: the process is still starting, or a hook of the backend blocks it"
)

_T = TypeVar("_T")


@final
@attrs.frozen
class Page(Generic[_T]):
    """A page besides the probes.

    Attributes:
        look: Called in the watched event loop. Returns an immutable value, or a coroutine that returns one.
        show: Makes the body of that, in the thread that answers. `None` if the event loop is blocked.
        kind: The media type.
        is_private: Whether only clients of the unix socket get it.
        names_pods: Whether a client over TCP must ask by an address or a name that no stranger owns (`is_familiar`).
        deadline: Seconds within which the event loop must answer.
        pause: Seconds for which all clients get the same answer; longer if it took long to make. With 0, each client
            gets its own.
    """

    __repr__ = shown

    look: Callable[[], _T | Coroutine[Any, Any, _T]]
    show: Callable[[_T | None], str]
    kind: str
    is_private: bool
    names_pods: bool = False
    deadline: float = LOOP_DEADLINE
    pause: float = 0.0


@final
class _Kept(Generic[_T]):
    """A page with its last answer."""

    def __init__(self, page: Page[_T], loop: asyncio.AbstractEventLoop) -> None:
        self.page = page
        self._question = _Question(loop, page.look)
        self._last: Response | None = None
        self._fresh_until = 0.0

    async def answer(self) -> Response:
        """Return what the page shows now. Called in the event loop of the thread that answers."""
        if self._last is not None and time.monotonic() < self._fresh_until:
            return self._last
        seen = await self._question.answer(self.page.deadline)
        if self._last is not None and time.monotonic() < self._fresh_until:
            return self._last  # another client waited, too, and was first
        began = time.monotonic()
        self._last = Response(200, self.page.show(seen), self.page.kind)
        made = time.monotonic()
        if self.page.pause:
            self._fresh_until = made + max(self.page.pause, MAKING_SHARE * (made - began))
        return self._last


@final
class _Question(Generic[_T]):
    """Something that only the watched event loop knows. It is asked once at a time, however many wait for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], _T | Coroutine[Any, Any, _T]]) -> None:
        self._loop = loop
        self._function = function
        self._task: asyncio.Task[None] | None = None
        self._asked: concurrent.futures.Future[_T] | None = None

    async def answer(self, deadline: float = LOOP_DEADLINE) -> _T | None:
        """Return what the function returned; None: the event loop has not turned in time, or is closed.

        Called in the event loop of the thread that answers. Whatever the function raises is raised here.
        """
        asked = self._asked
        if asked is None or asked.done():
            asked = self._asked = concurrent.futures.Future[_T]()
            try:
                self._loop.call_soon_threadsafe(self._call, asked)
            except RuntimeError:  # the loop is closed
                return None
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(asked)), deadline)
        except TimeoutError:
            return None

    def _call(self, asked: concurrent.futures.Future[_T]) -> None:
        try:
            found = self._function()
        except Exception as error:  # noqa: BLE001 - an answer too: it must not end the loop's callback silently
            asked.set_exception(error)
            return
        if isinstance(found, Coroutine):
            self._task = self._loop.create_task(self._wait(asked, cast("Coroutine[Any, Any, _T]", found)))
        else:
            asked.set_result(found)

    async def _wait(self, asked: concurrent.futures.Future[_T], found: Coroutine[Any, Any, _T]) -> None:
        try:
            asked.set_result(await found)
        except Exception as error:  # noqa: BLE001 - an answer, too
            asked.set_exception(error)


@final
class Probes:
    """The HTTP server. Made and closed in the event loop that it watches; there it calls ``readiness``.

    Args:
        address: Where it answers over TCP; None: nowhere.
        readiness: Says whether the plugin is ready.
        path: Where its unix socket is; None: there is none. A path where none can be made is told in the log.
        shows_all: Whether remote clients get the details as well.
        pages: Further pages by their path.
        node: The node's name, by which it may be asked as well; None: unknown.
        why_blocked: Returns the sentence for an event loop that does not answer. Called in the thread that answers.

    Attributes:
        url: Its TCP address, with the port that it really has; empty: it has none.

    Raises:
        ConfigurationError: Nobody can listen at the address.
    """

    def __init__(
        self,
        address: Address | None,
        readiness: Callable[[], Readiness],
        *,
        path: Path | None = None,
        shows_all: bool = False,
        pages: Mapping[str, Page[Any]] = MappingProxyType({}),
        node: str | None = None,
        why_blocked: Callable[[], str] = lambda: BLOCKED,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_alive = _Question(self._loop, lambda: True)
        self._readiness = _Question(self._loop, readiness)
        self._pages = {path: _Kept(page, self._loop) for path, page in pages.items()}
        self._path = path
        self._shows_all = shows_all
        self._node = node
        self._why_blocked = why_blocked
        self._listening = None if address is None else listening_at(address)
        self._closing = threading.Event()
        self._wake: Callable[[], object] = lambda: None
        self._thread: threading.Thread | None = None
        self._start_later: asyncio.TimerHandle | None = None
        self.url = "" if self._listening is None else url_of(self._listening)
        self._start()
        if address is not None:
            others = "".join(f", and {self.url}{path}" for path, page in pages.items() if not page.is_private)
            text = "health probes at %s/livez and %s/readyz%s"
            logger.info(text, self.url, self.url, others, extra={"address": self.url})

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._start_later is not None:
            self._start_later.cancel()
        with contextlib.suppress(RuntimeError):  # its loop has ended by itself
            self._wake()
        if self._thread is not None:
            self._thread.join(1.0)
        if self._listening is not None:
            self._listening.close()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="kdp-probes", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # as at a container's limit of processes
            if self._start_later is None:
                logger.error("the health probes are not answered yet: %s; trying again", error)
            self._start_later = self._loop.call_later(START_AGAIN, self._start)
        else:
            self._thread = thread

    def _work(self) -> None:
        has_complained = False
        while not self._closing.is_set():
            try:
                asyncio.run(self._serve())
            except OSError as error:  # as without a descriptor for its event loop
                if not has_complained:
                    logger.error("the health probes are not answered: %s; trying again", error.strerror)
                has_complained = True
                self._closing.wait(START_AGAIN)

    async def _serve(self) -> None:
        loop, ending = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(ending.set)
        tasks: list[asyncio.Task[Any]] = []
        if self._listening is not None:
            tasks.append(asyncio.create_task(Listener(self._listening, self._answer).serve()))
        if self._path is not None:
            tasks.append(asyncio.create_task(self._serve_commands(self._path)))
        if not self._closing.is_set():
            await ending.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve_commands(self, path: Path) -> None:
        while True:
            own = await _taken(path)
            serving = asyncio.create_task(Listener(own.listening, self._answer).serve())
            try:
                while own.is_there:  # noqa: ASYNC110 - a file
                    await asyncio.sleep(LOOK_AGAIN)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                own.listening.close()  # the task may not have begun
                own.close()
            logger.warning("socket %s was removed, so commands could not ask this process: making it again", path)

    async def _answer(self, path: str, client: Client) -> Response:
        is_shown = client.is_local or self._shows_all
        if path in ("/livez", "/healthz"):
            if await self._is_alive.answer():
                return Response(200, "ok\n")
            return Response(503, f"{self._why_blocked()}\n" if is_shown else "not alive\n")
        if path in self._pages:
            kept = self._pages[path]
            if kept.page.is_private and not client.is_owner:
                return Response(403, "only the plugin's unix socket has this page: use kdp status\n")
            if kept.page.names_pods and not client.is_owner and not is_familiar(client.host, self._node):
                return Response(421, REFUSED)
            return await kept.answer()
        if path != "/readyz":
            hint = "; --metrics on makes /metrics" if path == "/metrics" else ""
            return Response(404, f"here are {', '.join(['/livez', '/readyz', *self._pages])}{hint}\n")
        readiness = await self._readiness.answer() or Readiness(False, {"reason": self._why_blocked()})
        status = 200 if readiness.is_ready else 503
        if not is_shown:
            return Response(status, "ok\n" if readiness.is_ready else "not ready\n")
        import json

        body = json.dumps({"ready": readiness.is_ready, **_shown(readiness.details)}, indent=2)
        return Response(status, f"{body}\n", "application/json")


def as_json(value: Mapping[str, object]) -> str:
    """Return a document as a line of JSON whose texts print."""
    import json

    return f"{json.dumps(_shown(value))}\n"


def _shown(value: Any) -> Any:
    """Return what JSON has, with texts that print: a user reads the body on a terminal."""
    if isinstance(value, str):
        return printable(value, MOST_OF_TEXT)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value)
        return {printable(key, MOST_OF_TEXT): _shown(each) for key, each in pairs.items()}
    return [_shown(each) for each in cast("Sequence[Any]", value)] if isinstance(value, (list, tuple)) else value


async def _taken(path: Path) -> OwnSocket:
    """Return a socket at a path as soon as it can be made there; why it cannot yet is told once."""
    said = ""
    while True:
        try:
            own = OwnSocket(path)
        except PlaceTakenError as error:
            if str(error) != said:
                # An ordinary user who tries a plugin has no right to the default state directory.
                level = logging.INFO if isinstance(error.__cause__, PermissionError) else logging.WARNING
                logger.log(level, "no command can ask this process yet: %s", error)
            said = str(error)
            await asyncio.sleep(TAKE_AGAIN)
        else:
            logger.log(logging.INFO if said else logging.DEBUG, "commands can ask this process at %s", path)
            return own


def status_page(
    look: Callable[[], Coroutine[Any, Any, _T]], document: Callable[[_T | None], StatusDocument]
) -> Page[_T]:
    """Return the page with the status document. Only clients of the unix socket get it, because it names pods.

    Args:
        look: Called in the watched event loop. Returns an immutable value.
        document: Makes the document of that value, in the thread that answers. `None` if the event loop is blocked.
    """
    return Page(
        look=look,
        show=lambda seen: as_json(document(seen).to_json()),
        kind="application/json",
        is_private=True,
        deadline=STATUS_DEADLINE,
    )


def log_page(text: Callable[[], str]) -> Page[None]:
    """Return the page of the log's last lines, for clients of the unix socket; a blocked event loop has it, too."""
    return Page(look=lambda: None, show=lambda _: text(), kind="text/plain", is_private=True)
