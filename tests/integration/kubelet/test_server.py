"""`SocketServer`: what a real gRPC server does when it is stopped."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import grpc

from kdp.kubelet.channel import unix_target
from kdp.kubelet.server import SocketServer


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
        with anyio.fail_after(10):
            assert await stream.code() is not grpc.StatusCode.OK
    await anyio.wait_all_tasks_blocked()
    assert not raised
