"""`Prometheus`: a real one, which scrapes plugins on this machine, and is asked over its API."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import anyio
import yaml
from anyio import AsyncContextManagerMixin, to_thread
from typing_extensions import override

from kdp_testkit.patience import PATIENCE

from .tools import BIN, program

PERIOD = 1.0
"""Seconds between two scrapes, and between two evaluations of the rules. Prometheus waits so long for a scrape, and a
plugin waits half a second for its event loop."""


class Prometheus(AsyncContextManagerMixin):
    """A Prometheus. An async context manager: it answers from entry to exit.

    Args:
        targets: The port of each target on this machine, by what its label ``instance`` is to be.
        rules: Files of rules.
        others: The ports of targets that are no plugins.

    Attributes:
        began: When it was started, in Unix seconds.

    Raises:
        Missing: There is none.
    """

    def __init__(
        self, targets: Mapping[str, int], rules: Sequence[Path] = (), *, others: Mapping[str, int] | None = None
    ) -> None:
        self._program = program("prometheus", BIN / "prometheus/usr/bin")
        self._targets = dict(targets)
        self._others = dict(others or {})
        self._rules = [str(each) for each in rules]
        self._work = Path(tempfile.mkdtemp(prefix="kdp-"))
        self._address = ""
        self.began = 0.0

    @override
    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        self._configure()
        self._address = f"127.0.0.1:{_free_port()}"
        self.began = time.time()
        with (self._work / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                self._program,
                f"--config.file={self._work}/prometheus.yml",
                f"--storage.tsdb.path={self._work}/data",
                f"--web.listen-address={self._address}",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            await self._until_ready(process)
            yield self
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.terminate()
                await process.wait()
                shutil.rmtree(self._work, ignore_errors=True)

    def _configure(self) -> None:
        period = f"{PERIOD * 1e3:.0f}ms"
        of_operator = {"namespace": "kube-system", "pod": "kdp-x7k2p", "container": "plugin"}
        static = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name, "node": name, **of_operator}}
            for name, port in self._targets.items()
        ]
        others = [{"targets": [f"127.0.0.1:{port}"]} for port in self._others.values()]
        configuration = {
            "global": {"scrape_interval": period, "scrape_timeout": period, "evaluation_interval": period},
            "rule_files": self._rules,
            "scrape_configs": [
                {"job_name": "kdp", "honor_labels": True, "static_configs": static},
                {"job_name": "others", "honor_labels": True, "static_configs": others},
            ],
        }
        (self._work / "prometheus.yml").write_text(yaml.safe_dump(configuration))

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        with anyio.fail_after(PATIENCE):
            while True:
                assert process.returncode is None, self.story()
                try:
                    await to_thread.run_sync(_get, f"http://{self._address}/-/ready")
                except OSError:
                    await anyio.sleep(0.1)
                else:
                    return

    async def ask(self, path: str, **parameters: object) -> Any:
        """Return what the API answers.

        Raises:
            ValueError: It refuses the question; the text is its own.
        """
        query = urllib.parse.urlencode({name: str(value) for name, value in parameters.items()})
        answer = json.loads(await to_thread.run_sync(_get, f"http://{self._address}/api/v1/{path}?{query}"))
        if answer["status"] != "success":
            raise ValueError(f"{path} {parameters}: {answer['error']}")
        return answer["data"]

    async def query(self, expression: str) -> dict[frozenset[tuple[str, str]], float]:
        """Return the values of an expression now, by labels."""
        found = (await self.ask("query", query=expression))["result"]
        return {frozenset(each["metric"].items()): float(each["value"][1]) for each in found}

    async def history(self, expression: str) -> dict[frozenset[tuple[str, str]], list[tuple[float, float]]]:
        """Return the values of an expression since the start, with their times, by labels."""
        asked = {"query": expression, "start": self.began, "end": time.time(), "step": PERIOD}
        found = (await self.ask("query_range", **asked))["result"]
        return {
            frozenset(each["metric"].items()): [(float(when), float(value)) for when, value in each["values"]]
            for each in found
        }

    async def until(self, expression: str, seconds: float = PATIENCE) -> None:
        """Wait until an expression has a value.

        Raises:
            AssertionError: It has none in time.
        """
        try:
            with anyio.fail_after(seconds):
                while not await self.query(expression):  # noqa: ASYNC110 - another process has it
                    await anyio.sleep(PERIOD / 2)
        except TimeoutError:
            raise AssertionError(f"there is no {expression} within {seconds:g} s") from None

    async def alerts(self) -> list[Any]:
        """Return the alerts that are pending or firing, as the API has them."""
        found: list[Any] = (await self.ask("alerts"))["alerts"]
        return found

    async def scraped(self, name: str) -> str:
        """Return what a target answers now."""
        url = f"http://127.0.0.1:{self._targets[name]}/metrics"
        return (await to_thread.run_sync(_get, url)).decode()

    def story(self) -> str:
        """Return its log."""
        path = self._work / "log"
        return path.read_text(errors="replace")[-20_000:] if path.exists() else ""


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 503:
                raise ConnectionError("it is not ready") from None
            return error.read()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
