"""How a backend's units are linked: asked of its hook ``links`` whenever the set of units changed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import anyio

from ..errors import HookError, InvalidValueError, sentence

if TYPE_CHECKING:
    from ..allocation import Topology
    from ..allocation.policies import Preferences
    from ..model.devices import Device
    from .hooks import Hooks
    from .publisher import DiscoveryPublisher

logger = logging.getLogger(__name__)


async def ask_links(hooks: Hooks, devices: tuple[Device, ...], *, deadline: float) -> Topology:
    """Ask a backend how the units of these devices are linked; raises what `Hooks.call` does."""
    from ..allocation import Topology

    def examine(links: Any) -> Topology:
        if not isinstance(links, Mapping):
            raise InvalidValueError(f"it returned {links!r}: must map pairs of units to weights")
        return Topology((device.unit for device in devices), links)  # pyright: ignore[reportUnknownArgumentType]

    topology: Topology = await hooks.call("links", devices, deadline=deadline, then=examine)
    return topology


async def follow_links(
    hooks: Hooks, publisher: DiscoveryPublisher, preferences: Preferences, *, deadline: float, retry_after: float
) -> NoReturn:
    """Ask how the units are linked whenever there are others than before, until the hook raises `NotReady`."""
    asked: frozenset[str] | None = None
    logged = ""
    version = -1
    while True:
        await publisher.discovery.after(version)
        version = publisher.discovery.version
        while (devices := publisher.devices) and (units := frozenset(device.unit for device in devices)) != asked:
            try:
                preferences.topology = await ask_links(hooks, devices, deadline=deadline)
            except HookError as error:
                if sentence(error) != logged:
                    logged = sentence(error)
                    logger.warning("%s: %s; the previous links stay in force", hooks.label, logged)
                await anyio.sleep(retry_after)
            else:
                asked, logged = units, ""
