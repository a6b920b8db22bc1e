"""Vendor code that forks, or that crashes the process: a line says which hook it was, and no second plugin lives on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

pytestmark = pytest.mark.thorough

Start = Callable[..., AbstractAsyncContextManager[Any]]

PROGRAM = """
import ctypes, os
import kdp

class Cards(kdp.DeviceBackend):
    resource = "example.com/card"
    poll_interval = None

    {hook}
        {body}
        return [kdp.Device(id="c0")]

kdp.run(Cards())
"""


def program(body: str, *, hook: str = "def discover(self):") -> str:
    return PROGRAM.replace("{hook}", hook).replace("{body}", body)


@pytest.mark.parametrize("hook", ["def discover(self):", "async def discover(self):"])
async def test_a_child_that_a_hook_forked_went_on_as_a_second_plugin(start: Start, hook: str) -> None:
    async with start(program("os.fork()", hook=hook)) as plugin:
        await plugin.says("discover() of Cards forked and returned in the child")
        await plugin.says("connected to the kubelet")
        assert (await plugin.stop())[0] == 0
        assert plugin.log.count("connected to the kubelet") == 1, "stderr is closed, so no child lives"


async def test_a_library_that_made_itself_a_daemon_left_an_empty_log(start: Start) -> None:
    async with start(program("os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0)")) as plugin:
        assert await plugin.ends() == 0, "the library has ended it"
        assert "discover() of Cards forked and returned in the child" in plugin.log
        assert "connected to the kubelet" not in plugin.log


async def test_a_child_that_ends_itself_is_no_fault(start: Start) -> None:
    async with start(program("if os.fork() == 0: raise SystemExit")) as plugin:
        await plugin.says("connected to the kubelet")
        assert (await plugin.stop())[0] == 0
        assert "forked" not in plugin.log


async def test_a_crash_in_a_library_ended_the_process_without_a_line(start: Start) -> None:
    async with start(program("ctypes.string_at(0)")) as plugin:
        assert await plugin.ends() == -signal.SIGSEGV
        assert "Fatal Python error: Segmentation fault" in plugin.log
        assert "in discover" in plugin.log
