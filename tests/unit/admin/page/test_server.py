"""The page over HTTP: one question for all browsers, and no answer for a stranger's name."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from email.message import Message
from urllib.request import Request

import anyio
from anyio import to_thread
from tests.integration.fetching import fetch

from kdp.admin.page.server import PageServer
from kdp.admin.page.view import AskedPlugin
from kdp.daemon.listener import listening_at, url_of
from kdp.daemon.parsers import Address

from .samples import Parsed, asked, device, document, resource


class Plugins:
    """Plugins that are asked, with how often."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = threading.Event()
        self.answers.set()

    def look(self) -> Sequence[AskedPlugin]:
        self.asked += 1
        self.answers.wait(30)
        return [asked(document(resource(device(f"gpu-{self.asked}"))))]


@asynccontextmanager
async def serving(look: Callable[[], Sequence[AskedPlugin]]) -> AsyncIterator[str]:
    listening = listening_at(Address("127.0.0.1", 0))
    url = url_of(listening)
    task = asyncio.create_task(PageServer(listening, look).serve())
    try:
        yield url
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def got(url: str, host: str | None = None) -> tuple[int, Message, str]:
    return await to_thread.run_sync(fetch, Request(url, headers={} if host is None else {"Host": host}))  # noqa: S310


async def test_the_page_and_its_content() -> None:
    plugins = Plugins()
    async with serving(plugins.look) as url:
        status, headers, page = await got(f"{url}/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "gpu-1" in Parsed(page).text
        status, headers, tree = await got(f"{url}/page.json")
        assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert json.loads(tree)["title"] == "Ready: devices of worker-7"
        assert (await got(f"{url}/status.json"))[0] == 404


async def test_all_browsers_share_one_question() -> None:
    plugins = Plugins()
    plugins.answers.clear()
    async with serving(plugins.look) as url, anyio.create_task_group() as tasks:
        found: list[str] = []

        async def browse() -> None:
            found.append((await got(f"{url}/page.json"))[2])

        for _ in range(8):
            tasks.start_soon(browse)
        with anyio.fail_after(30):
            while not plugins.asked:  # noqa: ASYNC110 - a thread
                await anyio.sleep(0.01)
        plugins.answers.set()
        with anyio.fail_after(30):
            while len(found) < 8:  # noqa: ASYNC110 - threads
                await anyio.sleep(0.01)
    assert len(set(found)) < 8
    assert plugins.asked < 8


async def test_the_plugins_are_asked_again_after_a_pause() -> None:
    plugins = Plugins()
    async with serving(plugins.look) as url:
        with anyio.fail_after(30):
            while "gpu-2" not in (await got(f"{url}/page.json"))[2]:  # noqa: ASYNC110 - a server
                await anyio.sleep(0.05)


async def test_a_name_that_a_stranger_can_own_gets_no_page() -> None:
    plugins = Plugins()
    async with serving(plugins.look) as url:
        for path in ("/", "/page.json"):
            status, _, text = await got(f"{url}{path}", "evil.example")
            assert (status, "gpu" in text) == (421, False)
        assert (await got(f"{url}/", "localhost:8080"))[0] == 200
    assert plugins.asked == 1


async def test_it_ends_although_a_plugin_hangs() -> None:
    plugins = Plugins()
    plugins.answers.clear()
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(30):
            async with serving(plugins.look) as url:

                async def browse() -> None:
                    with suppress(OSError):
                        await got(f"{url}/")

                tasks.start_soon(browse)
                while not plugins.asked:  # noqa: ASYNC110 - a thread
                    await anyio.sleep(0.01)
        plugins.answers.set()
