"""A simulated kubelet, and bare plugins that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from kdp.testing import SimulatedKubelet

from ..bare_plugin import BarePlugin
from .helpers import Recording

Connect = Callable[..., Awaitable[BarePlugin]]


@pytest.fixture
async def kubelet() -> AsyncIterator[SimulatedKubelet]:
    async with SimulatedKubelet(profile="k137", seed=3) as simulated:
        yield simulated


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Make a bare plugin that is registered through a recorder."""
    plugins: list[BarePlugin] = []

    async def make(at: Recording, **how: Any) -> BarePlugin:
        plugin = BarePlugin(at.paths.device_plugin_dir, **how)
        plugins.append(plugin)
        await plugin.serve()
        assert await plugin.register(at.paths.kubelet_socket) is None
        return plugin

    yield make
    for plugin in plugins:
        await plugin.stop()
