"""A device plugin straight on grpc.aio, without kdp: the yardstick.

What a good engineer writes for one resource and no more: messages are made once and kept, a change edits the kept list
in place, a lost stream leads to a new registration under a new name. No validation, no look at the hardware, no limits.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import grpc

from benchmarks.programs import api_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RESOURCE = "example.com/widget"
_to_bytes = pb.Empty.SerializeToString  # in upb the same function for all messages


class Plugin:
    """One resource's servicer; ``devices`` are the messages in the kept list, by id."""

    def __init__(self, directory: str, ids: list[str]) -> None:
        self.directory = directory
        self.listed = pb.ListAndWatchResponse()
        self.specs = {}
        for device_id in ids:
            self.listed.devices.add(ID=device_id, health="Healthy").topology.nodes.add(ID=0)
            self.specs[device_id] = pb.DeviceSpec(
                container_path=f"/dev/{device_id}", host_path="/dev/null", permissions="rw"
            )
        self.mount = pb.Mount(container_path="/etc/widget", host_path="/etc", read_only=True)
        self.devices = {device.ID: device for device in self.listed.devices}
        self.changed, self.lost, self.stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def change(self, device_id: str, healthy: bool) -> None:
        """Set a device's health and tell the kubelet."""
        self.devices[device_id].health = "Healthy" if healthy else "Unhealthy"
        self.changed.set()
        self.changed = asyncio.Event()

    async def _options(self, request: Any, context: Any) -> Any:
        return pb.DevicePluginOptions()

    async def _list_and_watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            while True:
                changed = self.changed
                yield self.listed
                await changed.wait()
        finally:
            self.lost.set()

    async def _allocate(self, request: Any, context: Any) -> Any:
        reply = pb.AllocateResponse()
        for asked in request.container_requests:
            ids = sorted(asked.devices_ids)
            for device_id in ids:
                if device_id not in self.devices or self.devices[device_id].health != "Healthy":
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no healthy device {device_id}")
            container = reply.container_responses.add(envs={"WIDGETS": ",".join(ids)}, mounts=[self.mount])
            container.devices.extend([self.specs[device_id] for device_id in ids])
        return reply

    async def run(self) -> None:
        """Serve and register, again after each lost stream, until SIGTERM."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop.set)
        unary, stream, empty = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler, pb.Empty
        methods = {
            "GetDevicePluginOptions": unary(self._options, empty.FromString, _to_bytes),
            "ListAndWatch": stream(self._list_and_watch, empty.FromString, _to_bytes),
            "Allocate": unary(self._allocate, pb.AllocateRequest.FromString, _to_bytes),
        }
        generation = 0
        while not self.stop.is_set():
            generation, self.lost = generation + 1, asyncio.Event()
            name = f"bare-{os.getpid()}-{generation}.sock"
            server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
            server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)])
            server.add_insecure_port(f"unix:{self.directory}/{name}")
            await server.start()
            async with grpc.aio.insecure_channel(f"unix:{self.directory}/kubelet.sock") as channel:
                register: Any = channel.unary_unary("/v1beta1.Registration/Register", _to_bytes)
                request = pb.RegisterRequest(version="v1beta1", endpoint=name, resource_name=RESOURCE, options={})
                await register(request, wait_for_ready=True)
            ends = [asyncio.create_task(event.wait()) for event in (self.stop, self.lost)]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            await server.stop(0.2)


def main() -> None:
    """Serve the ids given after the plugin directory."""
    asyncio.run(Plugin(sys.argv[1], sys.argv[2:]).run())
