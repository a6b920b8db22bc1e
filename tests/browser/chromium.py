"""A headless Chromium, driven by its DevTools protocol over a pipe: JSON messages that end with a zero byte.

No driver program and no websocket is needed, and no port is opened. `Browser` is the process, `Tab` one page in it.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self, cast

import anyio

from kdp_testkit.patience import PATIENCE

BIN: Final = Path(__file__).resolve().parent / "bin"


FLAGS: Final = (
    *("--headless", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--hide-scrollbars"),
    *("--disable-gpu", "--disable-dev-shm-usage", "--disable-breakpad", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-extensions", "--force-color-profile=srgb"),
    "--no-sandbox",  # root cannot have it, and an unpacked program has no part that becomes root
)

_MOST_BYTES: Final = 64 << 20

_INTO_PLACE: Final = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
"""A program that gives Chromium its pipes as the descriptors that it expects."""

_FONTS: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{own}</dir><dir>/usr/share/fonts</dir><cachedir>{cache}</cachedir>
<alias><family>system-ui</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias></fontconfig>
"""


class Missing(Exception):
    """There is no browser here; the text says how to get one."""


class BrowserError(Exception):
    """The browser refused a command, or a page did not do what was waited for."""


def program() -> Path:
    """Return the browser's program: what `packages.sh` has unpacked, or one that is installed.

    Raises:
        Missing: There is none.
    """
    unpacked = BIN / "chromium/usr/lib/chromium/chromium"
    if (BIN / "chromium/.complete").exists() and unpacked.exists():
        return unpacked
    installed = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if installed is None:
        raise Missing("chromium is missing: run `make browser-tools`, or install it")
    return Path(installed)


class Browser:
    """A running browser; an async context manager.

    Raises:
        Missing: There is no browser.
    """

    def __init__(self) -> None:
        self._program = program()
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}

    async def __aenter__(self) -> Self:
        self._folder = TemporaryDirectory(prefix="kdp-browser-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self._log = folder / "log"
        fonts = folder / "fonts.conf"
        fonts.write_text(_FONTS.format(own=BIN / "chromium/usr/share/fonts", cache=folder / "fonts"))
        libraries = sorted({each.parent for each in (BIN / "chromium/usr/lib").rglob("*.so*")}) if BIN.exists() else []
        environment = {
            **{
                name: value for name, value in os.environ.items() if name not in ("DISPLAY", "DBUS_SESSION_BUS_ADDRESS")
            },
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "FONTCONFIG_FILE": str(fonts),
            "HOME": str(folder),
        }
        commands, to_browser = (_high(each) for each in os.pipe())
        from_browser, answers = (_high(each) for each in os.pipe())
        arguments = [str(self._program), *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - it only starts it
                [sys.executable, "-c", _INTO_PLACE, str(commands), str(answers), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=(commands, answers),
                start_new_session=True,
            )
        os.close(commands)
        os.close(answers)
        self._to_browser = os.fdopen(to_browser, "wb", buffering=0)
        reader = asyncio.StreamReader(limit=_MOST_BYTES)
        self._pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_browser, "rb")
        )
        self._reading = asyncio.create_task(self._read(reader))
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(Exception):
            await self.command("Browser.close")
        with anyio.CancelScope(shield=True):
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with suppress(TimeoutError), anyio.fail_after(5):
                    while self._process.poll() is None:  # noqa: ASYNC110 - a process
                        await anyio.sleep(0.02)
                    break
            self._reading.cancel()
            self._pipe.close()
            self._to_browser.close()
            self._folder.cleanup()

    async def command(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        """Send a command and return its result.

        Raises:
            BrowserError: It was refused, or there is no answer.
        """
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        text = json.dumps(message if session is None else {**message, "sessionId": session})
        self._to_browser.write(text.encode() + b"\0")
        try:
            async with asyncio.timeout(PATIENCE):
                found = await answer
        except TimeoutError:
            raise BrowserError(f"no answer to {method}; the browser said:\n{self._log.read_text()[-2000:]}") from None
        if "error" in found:
            raise BrowserError(f"{method}: {found['error']}")
        return cast("dict[str, Any]", found["result"])

    async def open(
        self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> Tab:
        """Open a page in a tab and a profile of its own, and return when it is loaded."""
        context = (await self.command("Target.createBrowserContext"))["browserContextId"]
        target = await self.command("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.command("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        tab = self._tabs[attached["sessionId"]] = Tab(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network", "Audits", "Accessibility"):
            await tab.command(f"{domain}.enable")
        await tab.resize(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await tab.command("Emulation.setEmulatedMedia", features=scheme)
        await tab.command("Emulation.setScriptExecutionDisabled", value=not scripts)
        await tab.go(url)
        return tab

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                message = json.loads((await reader.readuntil(b"\0"))[:-1])
            except asyncio.IncompleteReadError:
                return
            if "id" in message:
                answer = self._answers.pop(message["id"])
                if not answer.done():
                    answer.set_result(message)
            elif (tab := self._tabs.get(message.get("sessionId", ""))) is not None:
                tab.take(message["method"], message["params"])


class Tab:
    """A page that is open.

    Attributes:
        complaints: What went wrong in it: dialogs, errors of scripts, violations of its policy, refused requests.
        requests: The URLs that it has asked for.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._loads = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []

    async def command(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command to this page; see `Browser.command`."""
        return await self._browser.command(method, self._session, **parameters)

    def take(self, method: str, said: dict[str, Any]) -> None:
        """Take an event."""
        if method == "Page.loadEventFired":
            self._loads += 1
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {said['message']}")
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(f"exception: {said['exceptionDetails']}")
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console: {said['args']}")
        elif method == "Log.entryAdded":
            self.complaints.append(f"{said['entry']['source']}: {said['entry']['text']}")
        elif method == "Audits.issueAdded":
            self.complaints.append(f"issue: {json.dumps(said['issue'])}")

    @property
    def loads(self) -> int:
        """How often a document was loaded."""
        return self._loads

    async def go(self, url: str) -> None:
        """Load a page, and return when it is loaded."""
        before = self._loads
        found = await self.command("Page.navigate", url=url)
        assert "errorText" not in found, found
        await self.wait(lambda: self._loads > before, "it is loaded")
        await self.until("document.documentElement && document.readyState === 'complete'")  # not an earlier load

    async def resize(self, width: int, height: int) -> None:
        """Make the page so many CSS pixels wide and high."""
        await self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, as JSON has it."""
        found = await self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until a JavaScript expression is true, and return its value."""
        with anyio.move_on_after(PATIENCE):
            while True:
                if found := await self.evaluate(expression):
                    return found
                await anyio.sleep(0.05)
        text = await self.evaluate("document.body.innerText")
        raise BrowserError(f"{expression} did not become true; the page has:\n{text}\n{self.complaints}")

    async def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition."""
        with anyio.move_on_after(PATIENCE):
            while not condition():  # noqa: ASYNC110 - events of the browser
                await anyio.sleep(0.01)
            return
        raise BrowserError(f"it did not come about that {what}: {self.complaints}")

    async def accessible(self) -> list[tuple[str, str]]:
        """Return role and name of everything that a screen reader is told, in the page's order."""
        nodes = (await self.command("Accessibility.getFullAXTree"))["nodes"]
        return [
            (str(each["role"]["value"]), str(each.get("name", {}).get("value", "")))
            for each in nodes
            if not each["ignored"]
        ]

    async def press(self, key: str) -> None:
        """Press a key."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        code = {"Tab": 9, "Enter": 13, " ": 32}[key]
        for kind in ("keyDown", "keyUp"):
            await self.command(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text, windowsVirtualKeyCode=code
            )

    async def picture(self, file: Path, *, tallest: int = 10_000) -> None:
        """Write a screenshot of the page down to a height, in the format that the file's name ends with."""
        size = (await self.command("Page.getLayoutMetrics"))["cssContentSize"]
        await self.resize(round(size["width"]), min(round(size["height"]), tallest))
        found = await self.command("Page.captureScreenshot", format=file.suffix[1:], quality=80)
        file.write_bytes(base64.b64decode(found["data"]))  # noqa: ASYNC240 - a small file


def _high(descriptor: int) -> int:
    """Return a copy whose number is not one of the browser's."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy
