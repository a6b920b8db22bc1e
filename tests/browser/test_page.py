"""The status page in a real browser: it keeps itself fresh, runs nothing of others, and can be read by everybody."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kdp.testing import Pod

from .chromium import Browser, Tab
from .scene import GPUS, HOSTILE, RESOURCE, SCRIPT, document, scene

Figure = Callable[[str, float, str], None]

MEASURE = Path(__file__).with_name("measure.js").read_text()

REFRESHED = "performance.getEntriesByType('resource').filter(each => each.name.endsWith('/page.json')).length"


def shows(text: str) -> str:
    return f"document.body.innerText.includes({json.dumps(text)})"


async def refreshed(tab: Tab, times: int = 1) -> None:
    """Wait until the script has asked so often since now."""
    before = await tab.evaluate(REFRESHED)
    await tab.until(f"{REFRESHED} >= {before + times}")


async def test_a_fault_appears_without_a_reload(browser: Browser, tmp_path: Path, figure: Figure) -> None:
    async with scene(tmp_path, GPUS, KDP_METRICS="on") as at:
        await at.kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 8})
        tab = await browser.open(at.url)
        assert await tab.evaluate("document.title") == "Ready: devices of worker-7"
        await tab.until(shows("8 of 8 healthy"))
        began = time.monotonic()
        (tmp_path / "ill-6").write_text("XID 79: the GPU has fallen off the bus")
        await tab.until(shows("XID 79: the GPU has fallen off the bus"))
        figure("a fault, until it is seen in the browser", time.monotonic() - began, "s")
        await tab.until(shows("7 of 8 healthy"))
        await tab.until("document.querySelector('.unit.bad text').textContent === 'gpu-6'")
        (tmp_path / "ill-6").unlink()
        await tab.until(shows("8 of 8 healthy"))
        await tab.until(shows("Recovered"))
        await at.kubelet.admit(Pod.asking({RESOURCE: 2}, name="train-0"))
        await tab.until(shows("as the policy preferred"))
        await tab.until("document.querySelectorAll('.unit.held').length === 2")
        await tab.until(shows("default/train-0 (main)"))
        await at.kubelet.stop()
        await tab.until(shows("Not ready"))
        assert await tab.evaluate("document.title") == "Not ready: devices of worker-7"
        assert tab.loads == 1
        assert tab.complaints == []
        assert {urlsplit(each).netloc for each in tab.requests if not each.startswith("data:")} == {
            urlsplit(at.url).netloc
        }


async def test_texts_of_others_run_nothing(browser: Browser, tmp_path: Path) -> None:
    async with scene(tmp_path, HOSTILE, KDP_METRICS="on") as at:
        await at.kubelet.until(streaming="example.com/evil")
        for scripts in (True, False):
            tab = await browser.open(at.url, scripts=scripts)
            if scripts:
                await refreshed(tab, 2)
                ids = await tab.evaluate(
                    "[...document.querySelectorAll('tbody th > bdi')].map(each => each.textContent)"
                )
                assert SCRIPT in ids
                assert [each["id"] for each in json.loads(await document(at))["resources"][0]["listed"]] == ids
                reasons = await tab.evaluate("[...document.querySelectorAll('.reason')].map(each => each.textContent)")
                assert all("<script>alert(5)</script>" in each and r"\u202e" in each for each in reasons)
                titles = await tab.evaluate("[...document.querySelectorAll('svg title')].map(each => each.textContent)")
                assert any(f"unit \\u202e{SCRIPT}" in each for each in titles)
                tags = await tab.evaluate(
                    "[...new Set([...document.querySelectorAll('body *')].map(each => each.localName))]"
                )
                assert not {"iframe", "img", "object", "embed", "form", "input", "foreignObject"} & {*tags}
                assert await tab.evaluate("document.querySelectorAll('script').length") == 1
                assert await tab.evaluate("document.querySelectorAll('svg').length") == 1
                assert await tab.evaluate(
                    "[...document.querySelectorAll('*')].every("
                    "each => [...each.attributes].every(one => !one.name.startsWith('on')))"
                )
            assert tab.complaints == []
            page = await tab.command("Page.getResourceTree")
            assert "childFrames" not in page["frameTree"]


async def test_the_policy_stops_what_gets_into_the_page_all_the_same(browser: Browser, tmp_path: Path) -> None:
    async with scene(tmp_path, GPUS) as at:
        tab = await browser.open(at.url)
        stopped = await tab.evaluate(
            """(() => {
                try { document.body.insertAdjacentHTML("beforeend", "<img src=x onerror=alert(1)>"); return "made"; }
                catch (error) { return error.name; }
            })()"""
        )
        assert stopped == "TypeError"
        await tab.evaluate(
            """(() => {
                const made = document.createElement("img");
                made.setAttribute("src", "http://127.0.0.1:9/x.png");
                document.body.append(made);
            })()"""
        )
        await tab.wait(lambda: any("img-src" in each for each in tab.complaints), "the picture is refused")
        refused = await tab.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', error => error.name)")
        assert refused == "TypeError"
        await tab.wait(lambda: any("connect-src" in each for each in tab.complaints), "the request is refused")


async def test_a_command_that_does_not_answer_is_said(browser: Browser, tmp_path: Path) -> None:
    async with scene(tmp_path, GPUS) as at:
        await at.kubelet.until(streaming=RESOURCE)
        tab = await browser.open(at.url)
        await refreshed(tab)
        os.kill(at.serving.pid, signal.SIGSTOP)
        try:
            await tab.until("/has not answered since \\d\\d:\\d\\d:\\d\\d UTC/.test(document.body.innerText)")
            assert await tab.evaluate(shows("gpu-7"))
        finally:
            os.kill(at.serving.pid, signal.SIGCONT)
        await tab.until("!document.body.innerText.includes('has not answered')")


async def test_a_plugin_that_does_not_answer_is_said_beside_its_last_status(browser: Browser, tmp_path: Path) -> None:
    async with scene(tmp_path, GPUS) as at:
        await at.kubelet.until(streaming=RESOURCE)
        tab = await browser.open(at.url)
        await tab.until(shows("gpu-7"))
        at.process.kill()
        await tab.until(shows("The plugin does not answer: "))
        assert await tab.evaluate("document.title") == "Not answering: devices of worker-7"
        assert await tab.evaluate(shows("gpu-7"))
        assert tab.complaints == []


async def test_without_scripts_it_loads_itself_again(browser: Browser, tmp_path: Path) -> None:
    async with scene(tmp_path, GPUS) as at:
        await at.kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 8})
        tab = await browser.open(at.url, scripts=False)
        (tmp_path / "ill-1").write_text("XID 48")
        await at.kubelet.until(allocatable={RESOURCE: 7})
        before = tab.loads
        await tab.wait(lambda: tab.loads >= before + 2, "it is loaded again")
        names = [name for _, name in await tab.accessible()]
        assert any("XID 48" in name for name in names)
        assert not any(each.endswith("/page.json") for each in tab.requests)
        assert tab.complaints == []


async def same_as_served(browser: Browser, tab: Tab, url: str) -> None:
    """Judge that the script's elements are those that a browser makes of the server's HTML."""
    await refreshed(tab)
    made = await tab.evaluate("document.querySelector('main').outerHTML")
    still = await browser.open(url, scripts=False)
    root = await still.command("DOM.getDocument")
    main = await still.command("DOM.querySelector", nodeId=root["root"]["nodeId"], selector="main")
    parsed = (await still.command("DOM.getOuterHTML", nodeId=main["nodeId"]))["outerHTML"]
    ages = re.compile(r"\(\d+ (s|min)\)")
    assert ages.sub("", made) == ages.sub("", parsed)


async def test_the_script_makes_what_the_server_makes_whatever_texts_say(browser: Browser, tmp_path: Path) -> None:
    async with scene(tmp_path, HOSTILE, KDP_METRICS="on") as at:
        await at.kubelet.until(streaming="example.com/evil")
        tab = await browser.open(at.url)
        await tab.until(shows("12.5 W"))
        await same_as_served(browser, tab, at.url)


async def test_it_can_be_read_aloud(browser: Browser, tmp_path: Path) -> None:
    width = 360
    async with scene(tmp_path, GPUS, KDP_METRICS="on") as at:
        await at.kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 8})
        tab = await browser.open(at.url, width=width)
        await tab.until(shows("Registered"))
        told = await tab.accessible()
        roles = [role for role, _ in told]
        assert [roles.count(role) for role in ("main", "contentinfo")] == [1, 1]
        assert ("heading", "Devices of worker-7") in told
        assert ("heading", RESOURCE) in told
        assert ("table", f"Devices of {RESOURCE}") in told
        columns = [name for role, name in told if role == "columnheader"]
        assert columns == ["Device", "Health", "Held by", "NUMA node", "Measured"]
        assert [name for role, name in told if role == "rowheader"] == [f"gpu-{i}" for i in range(8)]
        assert roles.count("cell") == 8 * 4
        assert [name for role, name in told if role == "image"] == ["8 units on 2 NUMA nodes; 28 links"]
        assert ("region", "Events") in told
        assert any(role == "status" for role in roles)
        assert await tab.evaluate("document.documentElement.lang") == "en"


async def test_it_can_be_used_with_a_keyboard(browser: Browser, tmp_path: Path) -> None:
    async with scene(tmp_path, GPUS, KDP_HEALTH_POLICY="flaps=none") as at:
        await at.kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 8})
        for i in range(9):  # and eight pods: more events than are shown at once
            fault = tmp_path / f"ill-{i % 8}"
            fault.write_text(f"fault {i}")
            await at.kubelet.until(allocatable={RESOURCE: 7})
            fault.unlink()
            await at.kubelet.until(allocatable={RESOURCE: 8})
        for _ in range(8):
            await at.kubelet.admit(Pod.asking({RESOURCE: 1}))
        tab = await browser.open(at.url)
        await refreshed(tab)
        await tab.press("Tab")
        assert await tab.evaluate("document.activeElement.localName") == "summary"
        outline = await tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        await tab.press("Enter")
        await tab.until("document.querySelector('details').open")
        (tmp_path / "ill-2").write_text("a new fault")
        await tab.until(shows("a new fault"))
        assert await tab.evaluate("document.querySelector('details').open")
        assert await tab.evaluate("document.activeElement.localName") == "summary"


@pytest.mark.parametrize(
    ("source", "width", "dark"),
    [(GPUS, 360, False), (GPUS, 1280, True), (HOSTILE, 360, True)],
    ids=["gpus", "gpus, wide and dark", "hostile"],
)
async def test_everything_fits_and_stands_out(
    browser: Browser, tmp_path: Path, source: str, width: int, dark: bool
) -> None:
    async with scene(tmp_path, source, KDP_METRICS="on", KDP_NODE_NAME="n" * 253) as at:
        await at.kubelet.until(streaming=RESOURCE if source == GPUS else "example.com/evil")
        (tmp_path / "ill-5").write_text("x" * 500)
        tab = await browser.open(at.url, width=width, dark=dark)
        await tab.until(shows("x" * 500 if source == GPUS else SCRIPT))
        await tab.until(shows(" W"))
        found: dict[str, Any] = await tab.evaluate(MEASURE)
        assert found["texts"] > 40
        assert found["faint"] == []
        assert found["cut"] == []
        assert found["width"] <= found["inner"] == width
        assert tab.complaints == []
