"""Vendor code that forks, or that crashes the process: a line says which hook it was, and no second plugin lives on."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
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
        # Python 3.14 takes a thread for freed now and then. The next start names the hook all the same.
        assert "in discover" in plugin.log or "<freed thread state>" in plugin.log


@pytest.mark.parametrize("hook", ["def discover(self):", "async def discover(self):"])
@pytest.mark.parametrize("fault", ["ctypes.string_at(0)", "os.kill(os.getpid(), 9)"])
async def test_the_next_start_names_the_hook_that_ran_at_a_crash(start: Start, hook: str, fault: str) -> None:
    """The log of a container that starts again did not say why the one before had ended."""
    said = "crashed or was killed while discover() of Cards ran"
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="kdp-") as folder:
        socket = f"{folder}/kdp.sock"
        async with start(program(fault, hook=hook), KDP_SOCKET=socket) as plugin:
            assert await plugin.ends() < 0
            pid = plugin.process.pid
        for is_told in (True, False):
            async with start(program("pass"), KDP_SOCKET=socket) as plugin:
                await plugin.says("connected to the kubelet")
                assert (await plugin.stop())[0] == 0
                assert (f"the process before this one ({pid}) {said}" in plugin.log) == is_told
        assert os.listdir(folder) == []


async def test_no_hook_waits_for_a_disk(start: Start, tmp_path: Path) -> None:
    async with start(program("pass"), KDP_SOCKET=str(tmp_path / "kdp.sock")) as plugin:
        await plugin.says("connected to the kubelet")
        assert not (tmp_path / "kdp.hooks").exists()


@pytest.mark.parametrize(("end", "code"), [("SystemExit", 0), ("SystemExit(3)", 3), ("SystemExit('so')", 1)])
async def test_a_child_of_a_hook_keeps_its_exit_code(start: Start, end: str, code: int) -> None:
    body = f"child = os.fork()\n        if not child: raise {end}\n        print(os.waitpid(child, 0)[1] >> 8, file=2)"
    body = body.replace("print(", "os.write(2, b'code %d;' % (").replace(", file=2)", "))")
    async with start(program(body)) as plugin:
        await plugin.says(f"code {code};")
        assert (await plugin.stop())[0] == 0


LOADED = """
import os
import kdp
{module}

class Cards(kdp.DeviceBackend):
    resource = "example.com/card"

    def __init__(self) -> None:
        {constructor}

    def discover(self):
        return [kdp.Device(id="c0")]
"""


@pytest.mark.parametrize(
    ("module", "constructor", "what"),
    [("os.fork()", "pass", "the module of"), ("", "os.fork()", "the constructor of Cards")],
)
async def test_a_child_that_was_forked_before_any_hook_was_a_second_plugin(
    start: Start, module: str, constructor: str, what: str
) -> None:
    async with start(LOADED.format(module=module, constructor=constructor), "Cards") as plugin:
        await plugin.says("connected to the kubelet")
        assert (await plugin.stop())[0] == 0
        assert f"{what} " in plugin.log
        assert plugin.log.count("forked and returned in the child") == 1
        assert plugin.log.count("connected to the kubelet") == 1
