"""The catalogue as a fixture, and what the plugin's tests have."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from typing import Protocol

import pytest
from tests.faults import FaultyKubelet

from kdp.deviceplugin.manager import PluginManager

from ..deviceplugin.conftest import block
from ..deviceplugin.helpers import RESOURCE, until
from . import catalogue
from .catalogue import Fault, Row

__all__ = ["block"]


class Saw(Protocol):
    """Report a row: ``saw(Fault.SOCKET_ABSENT, "there is no ...", "waiting, not ready")``."""

    def __call__(self, fault: Fault, sentence: str, state: str, exit_code: int | None = None) -> None: ...


@pytest.fixture
def saw(k: FaultyKubelet, tmp_path: object) -> Saw:
    paths = [os.fspath(k.paths.device_plugin_dir.parent), str(tmp_path)]

    def report(fault: Fault, sentence: str, state: str, exit_code: int | None = None) -> None:
        row = Row(catalogue.general(sentence, *paths), state, exit_code)
        if directory := os.environ.get(catalogue.ROWS):
            catalogue.leave(directory, fault, row)
            return
        assert catalogue.on_page().get(fault) == row.cells(fault), "the page is outdated: run `make faults`"

    return report


@pytest.fixture
async def k() -> AsyncIterator[FaultyKubelet]:
    async with FaultyKubelet(profile="k137", seed=5, watcher_period=0.05) as simulated:
        yield simulated


class Said(Protocol):
    """Wait for the one line of the log that has these words, and return it."""

    async def __call__(self, words: str, *, level: int = logging.WARNING) -> str: ...


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    caplog.set_level(logging.INFO, "kdp")

    async def wait(words: str, *, level: int = logging.WARNING) -> str:
        def found() -> list[str]:
            return [r.getMessage() for r in caplog.records if r.levelno >= level and words in r.getMessage()]

        await until(found, story=lambda: f"wanted: {words}\n" + "\n".join(r.getMessage() for r in caplog.records))
        [line] = found()
        return line

    return wait


def state_of(manager: PluginManager, resource: str = RESOURCE) -> str:
    """The state of a resource as the table tells it."""
    status = manager.status()
    ready = "ready" if status.is_ready else "not ready"
    held = status.resources.get(resource)
    if held is None:
        return f"not registered, {ready}"
    devices = f", {held.healthy} of {held.devices} devices healthy" if held.devices else ""
    return f"{held.state}, {ready}{devices}"
