"""The documentation site, as `make docs` built it, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest
from typing_extensions import override

from .chromium import Browser

SITE = Path(__file__).resolve().parents[2] / "docs/_build"

pytestmark = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="docs/_build is missing: run `make docs`")

PAGES = sorted(SITE.rglob("*.html"))


class Handler(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The URL of the site, on a small server of its own."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(SITE))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


class Html(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors = {""}
        self.feed(page.read_text())

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.links.add(value)
            elif name == "id" and value is not None:
                self.anchors.add(value)


def test_no_link_inside_the_site_is_broken() -> None:
    read = {page: Html(page) for page in PAGES}
    broken: list[str] = []
    for page, html in read.items():
        for link in html.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            if not target.is_file() or (target in read and unquote(url.fragment) not in read[target].anchors):
                broken.append(f"{page.relative_to(SITE)}: {link}")
    assert len(read) > 70
    assert broken == []


def test_flags_keep_their_dashes() -> None:
    text = (SITE / "docs/reference/cli.html").read_text()
    assert "--kubelet-root" in text
    assert "\N{EN DASH}kubelet-root" not in text


async def test_every_page_fits_a_phone_and_a_desk_and_complains_of_nothing(browser: Browser, site: str) -> None:
    tab = await browser.open(f"{site}docs/index.html")
    wide: list[str] = []
    for page in PAGES:
        await tab.go(f"{site}{page.relative_to(SITE)}")
        for width in (390, 1440):
            await tab.resize(width, 900)
            if await tab.evaluate("document.documentElement.scrollWidth") > width:
                wide.append(f"{page.relative_to(SITE)} at {width} px")
    assert wide == []
    assert tab.complaints == []
    assert {urlsplit(each).netloc for each in tab.requests if not each.startswith("data:")} == {urlsplit(site).netloc}


async def test_the_search_finds_pages_and_opens_them(browser: Browser, site: str) -> None:
    tab = await browser.open(f"{site}search.html?q=restart")
    await tab.until("document.querySelectorAll('#search-results ul.search li').length > 10")
    found = await tab.evaluate("[...document.querySelectorAll('#search-results li a')].map(each => each.href)")
    (page,) = [each for each in found if "/docs/explanation/kubelet.html" in each]
    await tab.go(page)
    await tab.until("document.querySelectorAll('mark, .highlighted').length > 0")
    assert tab.complaints == []


async def test_a_copy_button_takes_commands_without_prompt_and_output(browser: Browser, site: str) -> None:
    tab = await browser.open(f"{site}README.html")
    await tab.evaluate("document.execCommand = () => { window.copied = document.activeElement.value; return true }, 0")
    await tab.evaluate("document.querySelector('.highlight-console .copybtn').click()")
    assert (await tab.until("window.copied")).splitlines() == [
        "python3 -m venv venv && . venv/bin/activate",
        'pip install ".[cli,testing]" ./testkit',
    ]


async def test_a_picture_follows_the_switch_of_the_site(browser: Browser, site: str) -> None:
    tab = await browser.open(f"{site}docs/explanation/health.html")
    scheme = "getComputedStyle(document.querySelector('article img')).colorScheme"
    seen = set()
    for _ in range(3):
        await tab.evaluate("document.querySelector('.theme-toggle').click()")
        seen.add((await tab.evaluate("document.body.dataset.theme"), await tab.evaluate(scheme)))
    assert seen == {("auto", "light dark"), ("light", "light"), ("dark", "dark")}
