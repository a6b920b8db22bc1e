"""A simulated kubelet, and bare plugins that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from kdp.testing import SimulatedKubelet, events

from .bare_plugin import BarePlugin

MakePlugin = Callable[..., Awaitable[BarePlugin]]


@pytest.fixture
def profile() -> str:
    """A test of what the versions do differently gives this as a parameter."""
    return "k137"


@pytest.fixture
async def kubelet(profile: str) -> AsyncIterator[SimulatedKubelet]:
    async with SimulatedKubelet(profile=profile, seed=7) as simulated:
        yield simulated


@pytest.fixture
async def stop_plugins() -> AsyncIterator[list[BarePlugin]]:
    plugins: list[BarePlugin] = []
    yield plugins
    for plugin in plugins:
        await plugin.stop()


@pytest.fixture
def serve(kubelet: SimulatedKubelet, stop_plugins: list[BarePlugin]) -> MakePlugin:
    """Make a plugin that serves, without registering it."""

    async def make(**how: Any) -> BarePlugin:
        plugin = BarePlugin(how.pop("directory", kubelet.paths.device_plugin_dir), **how)
        stop_plugins.append(plugin)
        await plugin.serve()
        return plugin

    return make


@pytest.fixture
def connect(kubelet: SimulatedKubelet, serve: MakePlugin) -> MakePlugin:
    """Make a plugin that is registered and has sent its list."""

    async def make(**how: Any) -> BarePlugin:
        plugin = await serve(**how)
        assert await plugin.register(kubelet.paths.kubelet_socket) is None
        await kubelet.until(
            lambda: [e for e in kubelet.events.of(events.ListReceived) if e.socket_path == str(plugin.path)]
        )
        return plugin

    return make
