"""Registration through the plugin watcher (contract section 3, scenarios 65 to 69)."""

from __future__ import annotations

import os

import pytest

from kdp.deviceplugin import session
from kdp.testing import Pod, SimulatedKubelet, events

from .helpers import RESOURCE, Figure, Widgets, connected, own_sockets, registers, running, until

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


async def test_the_socket_answers_before_it_can_be_seen(k137: SimulatedKubelet, watcher: dict[str, str]) -> None:
    """It is renamed into place: the watcher never meets one that refuses."""
    async with connected(k137, Widgets("w0"), **watcher):
        [seen] = k137.events.of(events.PluginSocketSeen)
        assert not os.path.basename(seen.socket_path).startswith(".")
        assert not [info for info in k137.events.of(events.PluginInfoReceived) if info.error]


async def test_a_kubelet_that_restarts_finds_it_again(
    kubelet: SimulatedKubelet, watcher: dict[str, str], figure: Figure
) -> None:
    """Scenario 67: nothing is deleted; whether it is the old socket or a new one, it answers."""
    async with connected(kubelet, Widgets("w0"), **watcher):
        await kubelet.restart()
        await kubelet.until(allocatable={RESOURCE: 1}, streaming=RESOURCE)
        started = kubelet.events.of(events.KubeletStarted)[-1].time
        opened = kubelet.events.of(events.StreamOpened)[-1].time
        figure(f"watcher, {kubelet.profile.name}: listening -> stream", (opened - started) * 1e3, "ms")


async def test_a_lost_stream_makes_the_socket_anew(kubelet: SimulatedKubelet, watcher: dict[str, str]) -> None:
    """Scenario 68: only that lets the watcher look again."""
    async with connected(kubelet, Widgets("w0"), **watcher):
        before = own_sockets(kubelet.paths.plugins_registry_dir)
        kubelet.drop_stream(RESOURCE)
        await kubelet.until(lambda: len(kubelet.events.of(events.StreamOpened)) == 2, allocatable={RESOURCE: 1})
        assert not own_sockets(kubelet.paths.plugins_registry_dir) & before


async def test_nobody_comes(k137: SimulatedKubelet, watcher: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 71: a socket that the watcher has missed is made anew."""
    monkeypatch.setattr(session, "UNNOTICED_DEADLINE", 0.2)
    await k137.stop()
    registry = k137.paths.plugins_registry_dir
    async with running(k137, Widgets("w0"), **watcher) as manager:
        names: set[str] = set()

        def three() -> bool:
            names.update(name for name in own_sockets(registry) if not name.startswith("."))
            return len(names) >= 3

        await until(three)
        assert "has not picked up" in str(manager.status().resources[RESOURCE].reason)
        await k137.start()
        await k137.until(allocatable={RESOURCE: 1})


async def test_the_registry_directory_comes_late(k137: SimulatedKubelet, watcher: dict[str, str]) -> None:
    await k137.stop()
    k137.paths.plugins_registry_dir.rmdir()
    async with running(k137, Widgets("w0"), **watcher) as manager:
        await until(lambda: "No such file" in str(manager.status().resources.get(RESOURCE)))
        await k137.start()
        await k137.until(allocatable={RESOURCE: 1})


async def test_two_resources_and_changes(kubelet: SimulatedKubelet, watcher: dict[str, str]) -> None:
    backend, other = Widgets("w0"), Widgets("o0", resource="example.com/other")
    async with connected(kubelet, backend, other, **watcher):
        (await backend.report()).fault("w0", "broken")
        await kubelet.until(allocatable={RESOURCE: 0, "example.com/other": 1})
        kubelet.drop_stream("example.com/other")
        await kubelet.until(allocatable={RESOURCE: 0, "example.com/other": 1})
        assert len(kubelet.events.of(events.StreamOpened, resource=RESOURCE)) == 1
