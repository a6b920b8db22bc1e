"""Registration through the plugin watcher (contract section 3, scenarios 65 to 69)."""

from __future__ import annotations

import os

import pytest

from kdp.testing import Pod, SimulatedKubelet, events

from .helpers import RESOURCE, Widgets, connected, own_sockets, registers, running, until

pytestmark = pytest.mark.parametrize("watcher", [{"registration": "watcher"}], ids=[""])


async def test_a_plugin_is_found(kubelet: SimulatedKubelet, watcher: dict[str, str]) -> None:
    """Scenarios 65 and 69: GetInfo comes with a path for its authority."""
    async with connected(kubelet, Widgets("w0", "w1"), **watcher):
        await kubelet.until(lambda: kubelet.events.of(events.PluginNotified))
        [info] = kubelet.events.of(events.PluginInfoReceived)
        assert (info.plugin_type, info.resource, info.endpoint, info.versions, info.error) == (
            "DevicePlugin",
            RESOURCE,
            "",
            ("v1beta1",),
            None,
        )
        [notified] = kubelet.events.of(events.PluginNotified)
        assert (notified.registered, notified.failure) == (True, None)
        assert not registers(kubelet)  # never both routes for one resource
        assert own_sockets(kubelet.paths.device_plugin_dir) == set()
        await kubelet.admit(Pod.asking({RESOURCE: 2}))
    assert own_sockets(kubelet.paths.plugins_registry_dir) == set()


async def test_the_socket_answers_before_it_can_be_seen(kubelet: SimulatedKubelet, watcher: dict[str, str]) -> None:
    """It is renamed into place: the watcher never meets one that refuses."""
    async with connected(kubelet, Widgets("w0"), **watcher):
        [seen] = kubelet.events.of(events.PluginSocketSeen)
        assert not os.path.basename(seen.socket_path).startswith(".")
        assert not [info for info in kubelet.events.of(events.PluginInfoReceived) if info.error]


async def test_the_registry_directory_comes_late(kubelet: SimulatedKubelet, watcher: dict[str, str]) -> None:
    await kubelet.stop()
    kubelet.paths.plugins_registry_dir.rmdir()
    async with running(kubelet, Widgets("w0"), **watcher) as manager:
        await until(lambda: "No such file" in str(manager.status().resources.get(RESOURCE)))
        await kubelet.start()
        await kubelet.until(allocatable={RESOURCE: 1})
