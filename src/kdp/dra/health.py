"""What the kubelet is told of the devices' health, and what keeps new claims away from a sick one.

The kubelet believes a report for `TIMEOUT` seconds. So all devices are told at once, when one changes, and again after
half of that time; and nothing is told while nobody knows how they are: then the kubelet itself says Unknown.

Kubelets from 1.34 to 1.36 open the stream of v1alpha1 to every driver, also where it is not announced, and again every
5 s if it ends or fails: such a stream is held open and silent.

The kubelet evicts nobody because of health. A taint does, if it is to (`kdp.dra.taints`).

Source: DRA contract section 2.6.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from .names import device_name
from .wire import DeviceReport, encode_health

if TYPE_CHECKING:
    import grpc

    from ..concurrency.observable import Observable
    from ..supervision.publisher import Discovery

    _Context = grpc.aio.ServicerContext[Any, Any]

TIMEOUT = 30
"""Seconds; the kubelet's own default."""


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
        reported: tuple[DeviceReport, ...] | None = None
        at, since = 0.0, 0
        while True:
            version, found = self._discovery.version, self._discovery.value
            reports = _reports(found)
            if reports is not None and (reports != reported or time.monotonic() - at >= self._timeout / 2):
                since = int(time.time()) if reports != reported else since
                reported, at = reports, time.monotonic()
                await context.write(encode_health(self._pool, reports, at=since, timeout=self._timeout))
            try:
                async with asyncio.timeout(max(0.0, at + self._timeout / 2 - time.monotonic()) or self._timeout / 2):
                    await self._discovery.after(version)
            except TimeoutError:
                continue


def _reports(found: Discovery) -> tuple[DeviceReport, ...] | None:
    """Return what is to be said; None: nobody knows."""
    if found.devices is None or found.unknown is not None:
        return None
    return tuple(
        DeviceReport(
            name=device_name(device.id), is_healthy=device.health.is_healthy, message=device.health.reason or ""
        )
        for device in found.devices
    )
