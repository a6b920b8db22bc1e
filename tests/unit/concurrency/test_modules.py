"""`concurrency.modules`: loading while there is nothing to read with."""

from __future__ import annotations

import logging
import os
import resource
import sys

import anyio
import pytest

from kdp.concurrency import modules
from kdp_testkit.patience import PATIENCE

MODULE = "kdp.manifests"


async def test_a_plugin_without_descriptors_ended_since_it_loaded_a_module_late(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [name for name in sys.modules if name.startswith(MODULE)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(modules, "AGAIN", 0.01)
    caplog.set_level(logging.WARNING, modules.logger.name)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(modules.load, MODULE)
            with anyio.fail_after(PATIENCE):
                while not caplog.records:  # noqa: ASYNC110 - a log has no event
                    await anyio.sleep(0.01)
            assert MODULE not in sys.modules
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert MODULE in sys.modules
    (told,) = [text for text in caplog.messages if MODULE in text]
    assert "Too many open files" in told
    assert told.endswith("trying again")
