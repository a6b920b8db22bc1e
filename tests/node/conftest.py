"""What the tests of a real node share: the parts of the node, skipped with one sentence where they are missing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from .nodekit import MINORS, DeviceManager, Minor, Missing

_STORIES = pytest.StashKey[list[tuple[str, Callable[[], str]]]]()


class MakeDeviceManager(Protocol):
    """Start another device manager with settings of its own; it ends with the test."""

    async def __call__(self, **settings: Any) -> DeviceManager: ...


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder to `make test-node`: a run of all tests that names no folder needs no node."""
    return True if config.args_source is pytest.Config.ArgsSource.TESTPATHS else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put what the parts of the node said into the report of a failed test."""
    report = yield
    if report.failed:
        for title, story in item.stash.get(_STORIES, []):
            report.sections.append((title, story()))
    return report


def tells(request: pytest.FixtureRequest, title: str, story: Callable[[], str]) -> None:
    """Have this story in the report if the test fails."""
    request.node.stash.setdefault(_STORIES, []).append((title, story))


@pytest.fixture(params=MINORS, ids=lambda minor: minor.profile)
def minor(request: pytest.FixtureRequest) -> Minor:
    """Each version of Kubernetes in turn."""
    return _compiled(request.param)


@pytest.fixture
def newest() -> Minor:
    """The newest version: where the versions do not differ."""
    return _compiled(MINORS[-1])


def _compiled(minor: Minor) -> Minor:
    try:
        _ = minor.devmgr
    except Missing as missing:
        pytest.skip(str(missing))
    return minor


@pytest.fixture
async def make_devmgr(request: pytest.FixtureRequest) -> AsyncIterator[MakeDeviceManager]:
    """Start device managers; all of them end with the test."""
    async with AsyncExitStack() as stack:

        async def make(**settings: Any) -> DeviceManager:
            manager = DeviceManager(**settings)
            tells(request, f"device manager {manager.minor.release}", manager.story)
            return await stack.enter_async_context(manager)

        yield make


@pytest.fixture
async def devmgr(minor: Minor, make_devmgr: MakeDeviceManager) -> DeviceManager:
    """The running device manager of each version in turn."""
    return await make_devmgr(minor=minor)
