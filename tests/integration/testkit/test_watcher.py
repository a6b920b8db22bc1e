"""Registration through the plugin watcher (contract section 3)."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator

import anyio
import pytest
from asyncinotify import Inotify

from kdp.proto import pluginregistration_v1_pb2 as registration
from kdp.testing import SimulatedKubelet, events
from kdp_testkit import watcher
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


async def test_a_path_as_a_plugin_in_its_own_mount_namespace_sees_it_is_found(
    profile: str, stop_plugins: list[BarePlugin]
) -> None:
    async with SimulatedKubelet(profile=profile, watcher_period=0.02, dial_timeout=0.5, seen_at="/there") as kubelet:
        plugin = BarePlugin(kubelet.paths.plugins_registry_dir, endpoint="widget.sock")
        plugin.info.endpoint = "/there/plugins_registry/widget.sock"
        stop_plugins.append(plugin)
        await plugin.serve()
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})


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


async def test_the_kubelet_did_not_start_while_other_processes_had_all_instances_of_inotify(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = 0

    def rare() -> Inotify:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return Inotify()

    monkeypatch.setattr(watcher, "Inotify", rare)
    async with SimulatedKubelet():
        assert tries == 3


async def test_a_kubelet_without_an_instance_of_inotify_names_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Inotify:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(watcher, "Inotify", none)
    monkeypatch.setattr(watcher, "PATIENCE", 0.1)
    with pytest.raises(OSError, match=r"no instance of inotify is free \(sysctl fs\.inotify\.max_user_instances"):
        async with SimulatedKubelet():
            pytest.fail("it has started")
