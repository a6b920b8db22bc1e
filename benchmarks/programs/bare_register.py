"""Tells a kubelet that listens of a plugin that is not there, for each line of stdin: the least that it can take."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import grpc

from . import api_pb2 as pb
from .bare import RESOURCE


async def _run(directory: str) -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.Queue[bytes]()
    loop.add_reader(0, lambda: orders.put_nowait(os.read(0, 4096)))
    idle = grpc.aio.insecure_channel("unix:/nowhere")  # keeps gRPC's threads alive in between
    while await orders.get():
        began = time.monotonic_ns()
        async with grpc.aio.insecure_channel(f"unix:{directory}/kubelet.sock") as channel:
            register: Any = channel.unary_unary("/v1beta1.Registration/Register", pb.RegisterRequest.SerializeToString)
            call = register(pb.RegisterRequest(version="v1beta1", endpoint="bare.sock", resource_name=RESOURCE))
            os.write(1, (json.dumps({"event": "began", "t": began}) + "\n").encode())
            await call.code()
    await idle.close()
    loop.remove_reader(0)


def main() -> None:
    """Register with the kubelet of this plugin directory."""
    asyncio.run(_run(sys.argv[1]))
