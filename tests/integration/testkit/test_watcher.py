"""Registration through the plugin watcher (contract section 3)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from kdp.proto.pluginregistration.v1 import api_pb2 as registration
from kdp.testing import SimulatedKubelet, events
from kdp_testkit.patience import PATIENCE

from .bare_plugin import RESOURCE, BarePlugin
from .conftest import MakePlugin


@pytest.fixture
async def kubelet(profile: str) -> AsyncIterator[SimulatedKubelet]:
    async with SimulatedKubelet(profile=profile, watcher_period=0.02, dial_timeout=0.5) as simulated:
        yield simulated


@pytest.fixture
def appear(kubelet: SimulatedKubelet, serve: MakePlugin) -> MakePlugin:
    """Make a plugin whose socket appears in the watcher's directory."""

    async def make(**how: object) -> object:
        return await serve(directory=kubelet.paths.plugins_registry_dir, **how)

    return make  # type: ignore[return-value]


async def test_a_socket_that_appears_is_registered_and_told_so(kubelet: SimulatedKubelet, appear: MakePlugin) -> None:
    plugin = await appear()
    await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})
    await plugin.until(lambda: plugin.notified)
    assert plugin.notified == [(True, "")]
    assert [name for name, _ in plugin.calls] == ["info", "options"]
    [info] = kubelet.events.of(events.PluginInfoReceived)
    assert (info.plugin_type, info.resource, info.versions) == ("DevicePlugin", RESOURCE, ("v1beta1",))


async def test_a_path_as_a_plugin_in_its_own_mount_namespace_sees_it_is_found(
    profile: str, stop_plugins: list[BarePlugin]
) -> None:
    async with SimulatedKubelet(profile=profile, watcher_period=0.02, dial_timeout=0.5, seen_at="/there") as kubelet:
        plugin = BarePlugin(kubelet.paths.plugins_registry_dir, endpoint="widget.sock")
        plugin.info.endpoint = "/there/plugins_registry/widget.sock"
        stop_plugins.append(plugin)
        await plugin.serve()
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})


async def test_a_socket_that_is_there_is_found_at_start_and_is_not_deleted(
    kubelet: SimulatedKubelet, appear: MakePlugin
) -> None:
    plugin = await appear()
    await kubelet.until(streaming=RESOURCE)
    await kubelet.restart()
    await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})
    assert plugin.path.exists()


async def test_directories_below_are_watched_and_dotted_names_are_not(
    kubelet: SimulatedKubelet, serve: MakePlugin
) -> None:
    folder = kubelet.paths.plugins_registry_dir / "vendor"
    folder.mkdir()
    await serve(directory=folder, resource="example.com/below")
    await kubelet.until(streaming="example.com/below")
    hidden = await serve(
        directory=kubelet.paths.plugins_registry_dir, resource="example.com/hidden", endpoint=".tmp.sock"
    )
    assert hidden.calls == []
    # A rename into the directory is a creation, with no moment in which connections are refused.
    hidden.path.rename(hidden.path.with_name("final.sock"))
    await kubelet.until(streaming="example.com/hidden")
    (kubelet.paths.plugins_registry_dir / "note.txt").touch()
    seen = [event.socket_path for event in kubelet.events.of(events.PluginSocketSeen)]
    assert [path.rsplit("/", 1)[1] for path in seen[1:]] == ["final.sock"]


async def test_removing_the_socket_disconnects_the_plugin(kubelet: SimulatedKubelet, appear: MakePlugin) -> None:
    plugin = await appear()
    await kubelet.until(streaming=RESOURCE)
    plugin.path.unlink()
    await kubelet.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 0})
    await plugin.until(lambda: plugin.streams == 0)


async def test_a_lost_stream_is_not_repaired_until_the_socket_is_made_again(
    kubelet: SimulatedKubelet, appear: MakePlugin
) -> None:
    plugin = await appear()
    await kubelet.until(streaming=RESOURCE)
    plugin.end_streams()
    await kubelet.until(allocatable={RESOURCE: 0})
    await plugin.stop()
    await plugin.serve()
    await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})
    assert len(kubelet.events.of(events.PluginInfoReceived)) == 2


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (
            registration.PluginInfo(type="CSIPlugin", name=RESOURCE, supported_versions=["v1beta1"]),
            "RegisterPlugin error -- no handler registered for plugin type: CSIPlugin at socket {path}",
        ),
        (
            registration.PluginInfo(type="DevicePlugin", name=RESOURCE, supported_versions=["v1", "v2"]),
            (
                "RegisterPlugin error -- plugin validation failed with err: "
                "manager version, v1beta1, is not among plugin supported versions [v1 v2]"
            ),
        ),
        (
            registration.PluginInfo(type="DevicePlugin", name="widget", supported_versions=["v1beta1"]),
            (
                "RegisterPlugin error -- plugin validation failed with err: "
                'invalid name of device plugin socket: the ResourceName "widget" is invalid'
            ),
        ),
    ],
)
async def test_a_plugin_is_refused_in_the_kubelets_words_and_tried_again(
    kubelet: SimulatedKubelet, appear: MakePlugin, info: registration.PluginInfo, text: str
) -> None:
    plugin = await appear()
    plugin.info = info
    await plugin.until(lambda: len(plugin.notified) == 2)
    assert plugin.notified == [(False, text.format(path=plugin.path))] * 2


async def test_a_failed_registration_is_tried_again_by_newer_kubelets_only(
    kubelet: SimulatedKubelet, appear: MakePlugin
) -> None:
    plugin = await appear(resource="example.com/lame")
    plugin.info.endpoint = str(kubelet.paths.plugins_registry_dir / "nobody.sock")
    await plugin.until(lambda: plugin.notified)
    assert plugin.notified[0] == (
        False,
        (
            "RegisterPlugin error -- plugin registration failed with err: "
            "failed to dial device plugin: context deadline exceeded"
        ),
    )
    plugin.info.endpoint = ""
    if kubelet.profile.watcher_retries:
        await kubelet.until(streaming="example.com/lame")
        return
    # The older one believes that it is registered. Somebody else's whole registration goes by meanwhile.
    await appear()
    await kubelet.until(streaming=RESOURCE)
    assert len([call for call in plugin.calls if call[0] == "info"]) == 1
    plugin.path.unlink()
    await plugin.stop()
    await plugin.serve()
    await kubelet.until(streaming="example.com/lame")


async def test_get_info_has_one_second(kubelet: SimulatedKubelet, appear: MakePlugin) -> None:
    plugin = await appear()
    slow = anyio.Event()
    prompt = plugin._info

    async def late(request: registration.InfoRequest, context: object) -> registration.PluginInfo:
        await slow.wait()
        return await prompt(request, context)

    plugin._info = late  # type: ignore[method-assign]
    await plugin.stop()
    await plugin.serve()
    await kubelet.until(
        lambda: any(event.error for event in kubelet.events.of(events.PluginInfoReceived)), timeout=PATIENCE
    )
    [failed] = [event for event in kubelet.events.of(events.PluginInfoReceived) if event.error]
    assert failed.error is not None
    assert failed.error.startswith("rpc error: code = DeadlineExceeded")
    slow.set()
    await kubelet.until(streaming=RESOURCE)  # after the backoff
