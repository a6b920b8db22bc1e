"""One look at a backend, for commands: open, discover, close."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from .links import ask_links
from .supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from ..allocation import Topology
    from ..hardware import Host
    from ..model.backend import DeviceBackend
    from ..model.devices import Device
    from .labelling import NodeLabels


async def discover_linked(
    backend: DeviceBackend, *, host: Host
) -> tuple[Mapping[str, tuple[Device, ...]], Topology | None]:
    """Do as `discover_once` does, and ask how the units are linked; None: the backend has no ``links``."""
    async with _supervised(backend, host) as supervisor:
        found = await supervisor.once()
        devices = tuple(device for held in found.values() for device in held)
        if not supervisor.hooks.overridden("links"):
            return found, None
        return found, await ask_links(supervisor.hooks, devices, deadline=supervisor.deadlines.links)


async def discover_once(backend: DeviceBackend, *, host: Host) -> Mapping[str, tuple[Device, ...]]:
    """Open a backend, discover once, close it, and return its devices by resource; for commands, not for plugins.

    A statically named resource is there also with no devices.

    Raises:
        KdpError: The backend is not ready, or a hook misbehaved.
    """
    async with _supervised(backend, host) as supervisor:
        return await supervisor.once()


async def discover_labels(backend: DeviceBackend, *, host: Host) -> NodeLabels:
    """Do as `discover_once` does, and return the labels that the backend wants for the node."""
    async with _supervised(backend, host, wants_labels=True) as supervisor:
        found = await supervisor.once()
        assert supervisor.labelling is not None  # as was asked for
        devices = tuple(device for held in found.values() for device in held)
        return await supervisor.labelling.ask(supervisor.hooks, backend, devices, deadline=supervisor.deadlines.labels)


@asynccontextmanager
async def _supervised(backend: DeviceBackend, host: Host, *, wants_labels: bool = False) -> AsyncGenerator[Supervisor]:
    supervisor = Supervisor(backend, host=host, wants_labels=wants_labels, wants_counters=True)
    try:
        yield supervisor
    finally:
        with anyio.CancelScope(shield=True):
            await supervisor.shutdown(supervisor.deadlines.close)
