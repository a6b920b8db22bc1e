"""What the tests in a browser share: one browser for all of them, and skipped with one sentence where there is none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .chromium import Browser, Missing


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder to `make test-browser`: a run of all tests that names no folder needs no browser."""
    return True if config.args_source is pytest.Config.ArgsSource.TESTPATHS else None


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The browser of the whole run; each page that it opens has a profile of its own."""
    try:
        made = Browser()
    except Missing as missing:
        pytest.skip(str(missing))
    async with made:
        yield made
