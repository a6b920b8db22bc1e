"""A simulated API server, and the command ``kdp`` against it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from anyio import to_thread
from click.testing import CliRunner, Result

from kdp.command.app import kdp as command
from kdp_testkit.dra.server import SimulatedApiServer, write_kubeconfig


class Kdp(Protocol):
    """Run the command with these words; ``answers`` is what is typed."""

    async def __call__(self, *words: str, code: int = 0) -> str: ...


@pytest.fixture
async def server() -> AsyncIterator[SimulatedApiServer]:
    async with SimulatedApiServer() as server:
        yield server


@pytest.fixture
def run(server: SimulatedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kdp:
    """Run ``kdp`` with the server's kubeconfig, in a thread: the server is in this event loop."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, server.url)))
    monkeypatch.setenv("KDP_STATE_DIR", str(tmp_path / "state"))

    async def run(*words: str, code: int = 0) -> str:
        result: Result = await to_thread.run_sync(lambda: CliRunner().invoke(command, words))
        assert result.exit_code == code, result.output
        return result.output

    return run


@pytest.fixture
def as_json(run: Kdp) -> Callable[..., Any]:
    async def as_json(*words: str, code: int = 0) -> Any:
        return json.loads(await run(*words, "--format", "json", code=code))

    return as_json
