"""`SocketServer`: what a real gRPC server does when it is stopped."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import grpc
import pytest
from tests.forking import FORK, parent

from kdp.kubelet.server import SocketServer, unix_target
from kdp.kubelet.sockets import is_answered
from kdp_testkit.patience import PATIENCE


async def _endless(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield b"first"
    await anyio.sleep_forever()


async def test_a_start_that_is_cancelled_halfway_is_finished(tmp_path: Path) -> None:
    """gRPC raised an InvalidStateError in nobody's task when such a server was stopped or forgotten."""
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    server = SocketServer(tmp_path / "s.sock", [])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.start)
        await anyio.lowlevel.cancel_shielded_checkpoint()
        tasks.cancel_scope.cancel()
    await server.stop()
    del server
    gc.collect()
    await anyio.wait_all_tasks_blocked()
    assert not raised


async def test_a_stop_that_is_cancelled_halfway_is_finished(tmp_path: Path) -> None:
    """gRPC stopped such a server once more when it was forgotten, and raised an InvalidStateError in nobody's task."""
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    methods: dict[str, Any] = {"Watch": grpc.unary_stream_rpc_method_handler(_endless)}
    server = SocketServer(tmp_path / "s.sock", [grpc.method_handlers_generic_handler("test.Service", methods)])
    await server.start()
    server.publish()
    async with grpc.aio.insecure_channel(unix_target(server.path)) as channel:
        watch: Any = channel.unary_stream("/test.Service/Watch")
        stream = watch(b"")
        assert await stream.read() == b"first"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.stop)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        del server
        gc.collect()
        with anyio.fail_after(PATIENCE):
            assert await stream.code() is not grpc.StatusCode.OK
    await anyio.wait_all_tasks_blocked()
    assert not raised


UMASK_0 = """
import asyncio, os, sys
from pathlib import Path
from grpc.aio._server import Server
from kdp.kubelet import server
Server.bind = Server.add_insecure_port
os.umask(0)
path = Path(sys.argv[1])

def stopped(self, address):
    found = Server.bind(self, address)
    print("bound", flush=True)  # gRPC has bound the socket, and nothing of ours has run since
    sys.stdin.readline()
    return found

async def main():
    serving = server.SocketServer(path, [])
    Server.add_insecure_port = stopped
    await serving.start()
    print("started", flush=True)
    sys.stdin.readline()
    serving.publish()
    print("published", flush=True)
    sys.stdin.readline()
    await serving.stop()

asyncio.run(main())
"""

TRY = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
for directory, _, names in os.walk(sys.argv[1]):
    for name in names:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(os.path.join(directory, name)) == 0:
                print(os.path.join(directory, name))
"""


def _connected_by_nobody(directory: Path) -> str:
    done = subprocess.run([sys.executable, "-c", TRY, directory], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_nobody_but_root_can_connect_at_any_moment() -> None:
    """With a umask of 0, anybody could connect between bind and chmod."""
    with tempfile.TemporaryDirectory() as place:  # pytest's own directories are private
        Path(place).chmod(0o755)
        path = Path(place, "s.sock")
        command = [sys.executable, "-c", UMASK_0, str(path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for step in ("bound", "started", "published"):
                assert process.stdout.readline() == f"{step}\n"
                assert _connected_by_nobody(Path(place)) == "", step
                if step == "published":
                    assert stat.S_IMODE(path.stat().st_mode) == 0o600
                    with socket.socket(socket.AF_UNIX) as kubelet:
                        kubelet.connect(str(path))
                process.stdin.write("on\n")
                process.stdin.flush()
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.communicate()
        assert list(Path(place).rglob("*")) == []


FORKED = f"""
import asyncio, os, sys, threading, time
from pathlib import Path
from kdp.kubelet.server import SocketServer

async def main():
    server = SocketServer(Path(sys.argv[1]), [])
    await server.start()
    server.publish()
    print("published", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
{textwrap.indent(FORK, "    ")}
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def test_a_forked_worker_does_not_answer_for_its_killed_parent(tmp_path: Path) -> None:
    """gRPC 1.75 leaves its sockets open in a child: the kubelet and the next driver would see a living plugin."""
    path = tmp_path / "s.sock"
    with parent(FORKED, str(path)) as process:
        assert process.line() == "published\n"
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.settimeout(10)
            kubelet.connect(str(path))
            assert kubelet.recv(1), "gRPC greets who connects"
            process.tell("fork")
            process.kill_beside(int(process.line()))
            while kubelet.recv(1 << 16):
                pass
        assert is_answered(path) is False
