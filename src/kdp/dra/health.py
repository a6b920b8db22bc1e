"""What the kubelet is told of the devices' health, and what keeps new claims away from a sick one.

The kubelet believes a report for `TIMEOUT` seconds. So all devices are told at once, when one changes, and again after
half of that time; and nothing is told while nobody knows how they are: then the kubelet itself says Unknown.

Kubelets from 1.34 to 1.36 open the stream of v1alpha1 to every driver, also where it is not announced, and again every
5 s if it ends or fails: such a stream is held open and silent.

The kubelet evicts nobody because of health. A taint does, if it is to (`kdp.dra.render.tainted`).

Source: DRA contract section 2.6.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from ..errors import within_bytes
from ..proto import drahealth_v1_pb2 as health_pb
from .names import device_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    import grpc

    from ..concurrency.observable import Observable
    from ..model.devices import Device, Health
    from ..supervision.publisher import Discovery

    _Context = grpc.aio.ServicerContext[Any, Any]

TIMEOUT = 30
"""Seconds; the kubelet's own default."""

MAX_MESSAGE_BYTES = 1024
"""Of a device's health; a kubelet cuts what is longer in the middle of a letter (DRA contract section 2.6)."""


class HealthStreams:
    """The streams of one driver: every kubelet's own, however many there are.

    Args:
        pool: The pool's name.
        discovery: What is known of the devices.
        is_on: Whether health is told; otherwise streams are only held open.
    """

    def __init__(self, pool: str, discovery: Observable[Discovery], *, is_on: bool = True) -> None:
        self._pool = pool
        self._discovery = discovery
        self._is_on = is_on
        self._timeout = TIMEOUT
        self._ended = asyncio.Event()

    def end(self) -> None:
        """End all streams, in good order."""
        self._ended.set()

    async def stream(self, _: None, context: _Context) -> None:
        """Serve NodeWatchResources."""
        ended = asyncio.create_task(self._ended.wait())
        telling = asyncio.create_task(self._tell(context)) if self._is_on else None
        tasks = {ended} if telling is None else {ended, telling}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if telling is not None and telling.done():
                telling.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _tell(self, context: _Context) -> None:
        reported: list[tuple[str, Health]] | None = None
        at, since = 0.0, 0
        while True:
            version, found = self._discovery.version, self._discovery.value
            if found.devices is not None and found.unknown is None:  # somebody knows
                state = [(device.id, device.health) for device in found.devices]
                if state != reported or time.monotonic() - at >= self._timeout / 2:
                    since = int(time.time()) if state != reported else since
                    reported, at = state, time.monotonic()
                    await context.write(encode_health(self._pool, found.devices, at=since, timeout=self._timeout))
            try:
                async with asyncio.timeout(max(0.0, at + self._timeout / 2 - time.monotonic()) or self._timeout / 2):
                    await self._discovery.after(version)
            except TimeoutError:
                continue


def encode_health(pool: str, devices: Iterable[Device], *, at: int, timeout: int) -> bytes:
    """Return a NodeWatchResourcesResponse.

    Args:
        pool: The pool's name.
        devices: All devices.
        at: Since when it is so, in seconds since 1970.
        timeout: Seconds after which the kubelet must not believe it any more.
    """
    reply = health_pb.NodeWatchResourcesResponse()
    for device in devices:
        reply.devices.add(
            device=health_pb.DeviceIdentifier(pool_name=pool, device_name=device_name(device.id)),
            health=health_pb.HEALTHY if device.health.is_healthy else health_pb.UNHEALTHY,
            last_updated_time=at,
            health_check_timeout_seconds=timeout,
            message=within_bytes(device.health.reason or "", MAX_MESSAGE_BYTES),
        )
    return reply.SerializeToString()
