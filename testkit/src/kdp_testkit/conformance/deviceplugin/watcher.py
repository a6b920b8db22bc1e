"""Checks 65 to 69: plugins that the kubelet's plugin watcher finds."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from ... import events
from ...protocol.wire import CallError, DialError, PluginConnection, PluginInfo
from ..checks import WATCHER, Checks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from .scene import Case, PluginScene

CHECKS: Checks[Case] = Checks()


def _sockets(scene: PluginScene) -> list[Path]:
    """Return the sockets that the plugin watcher would look at."""
    directory = scene.kubelet.paths.plugins_registry_dir
    return sorted(p for p in directory.rglob("*") if p.is_socket() and not p.name.startswith("."))


def _identities(scene: PluginScene) -> set[tuple[str, int]]:
    return {(str(path), path.stat().st_ctime_ns) for path in _sockets(scene)}


@asynccontextmanager
async def _dialed(scene: PluginScene, path: Path) -> AsyncGenerator[PluginConnection]:
    """Connect as the plugin watcher does: the authority is the percent-encoded path."""
    connection = PluginConnection(str(path), authority=None)
    try:
        await connection.dial()
    except DialError as error:
        raise scene.failed(f"{path.name} does not answer: {error}") from None
    try:
        yield connection
    finally:
        with anyio.CancelScope(shield=True):
            await connection.close()


async def _info(scene: PluginScene, path: Path) -> PluginInfo:
    async with _dialed(scene, path) as connection:
        try:
            return await connection.info()
        except CallError as error:
            raise scene.failed(f"GetInfo of {path.name} failed: {error}") from None


@CHECKS.add(
    65,
    "GetInfo says what the plugin watcher needs",
    expected=(
        "a socket appears: GetInfo within 1 s with type DevicePlugin, a valid resource name, v1beta1 among the versions"
    ),
    rule="section 3: the watcher gives GetInfo 1 s, finds the handler by type, and validates the name; one of the "
    "versions must be its own, and others do no harm",
    cure="serve pluginregistration.Registration on the socket: type 'DevicePlugin', name the resource, no endpoint",
    routes=WATCHER,
)
async def _get_info(case: Case) -> str:
    async with case.connected() as scene:
        infos = scene.kubelet.events.of(events.PluginInfoReceived)
        wrong = [event.error for event in infos if event.error]
        refused = scene.kubelet.events.of(events.PluginNotified)
        wrong += [event.error for event in refused if not event.registered]
        scene.require(not wrong, f"the plugin watcher said: {wrong[0] if wrong else ''}")
        info = next(event for event in infos if event.resource == scene.resource)
        scene.require(info.plugin_type == "DevicePlugin", f"the type was {info.plugin_type!r}")
        scene.require("v1beta1" in info.versions, f"the versions were {info.versions}")
    return f"DevicePlugin {info.resource} {list(info.versions)}"


@CHECKS.add(
    66,
    "a refusal by the plugin watcher is logged, and leads to a new socket",
    expected="NotifyRegistrationStatus(false, text): the plugin logs the text, and makes the socket anew after a pause",
    rule="section 3: kubelets before 1.36 never try a socket again; only a new file makes them look; section 12 (B20)",
    cure="when the status is false, log the text, unlink the socket and make a new one after a growing pause",
    routes=WATCHER,
)
async def _notified(case: Case) -> str:
    text = "plugin registration failed with err: refused by the conformance kit"
    async with case.node(autostart=False) as scene:
        scene.kubelet.paths.plugins_registry_dir.mkdir(parents=True, exist_ok=True)
        scene.kubelet.paths.device_plugin_dir.mkdir(parents=True, exist_ok=True)
        instance = await scene.start()
        await scene.until(lambda: _sockets(scene), case.patience_for_connecting, "no socket appeared")
        before = _identities(scene)
        async with _dialed(scene, _sockets(scene)[0]) as connection:
            await connection.info()
            await connection.notify(registered=False, error=text)
        took = await scene.until(
            lambda: _identities(scene) - before, case.limit(1.5), "the socket was not made anew after the refusal"
        )
        scene.require(
            "refused by the conformance kit" in instance.output(), "the plugin did not log why it was refused"
        )
    return f"the text was logged, a new socket came {took * 1000:.0f} ms after the refusal"


@CHECKS.add(
    67,
    "a plugin that the plugin watcher found survives the kubelet's restart",
    expected="the kubelet restarts, deletes nothing in its plugin directory, and looks again: GetInfo is answered, the "
    "stream is back",
    rule="section 3: at its start the kubelet walks the directory, and keeps the files of the plugin watcher",
    cure="keep the socket; when the stream ends make it anew, and answer GetInfo at any time",
    routes=WATCHER,
)
async def _restart(case: Case) -> str:
    async with case.connected() as scene:
        known, asked = len(scene.lists), len(scene.kubelet.events.of(events.PluginInfoReceived))
        before = set(scene.listed)
        await scene.kubelet.restart(down=case.span(0.1))
        took = await scene.connected(lists=known)
        answered = scene.kubelet.events.of(events.PluginInfoReceived)[asked:]
        scene.require(any(event.error is None for event in answered), "GetInfo was not answered after the restart")
        scene.require(set(scene.listed) >= before, "after the restart ids were missing")
    return f"GetInfo answered, the list is back {took * 1000:.0f} ms after the restart"


@CHECKS.add(
    68,
    "a lost stream leads to a new socket file",
    expected="the stream is lost: the socket file is made anew, so that the plugin watcher looks again",
    rule="section 3: the end of a stream does not make the watcher register again; only a new file does",
    cure="when the stream ends, unlink the socket and make a new one",
    routes=WATCHER,
)
async def _lost_stream(case: Case) -> str:
    async with case.connected() as scene:
        before, known = _identities(scene), len(scene.lists)
        scene.kubelet.drop_stream(scene.resource)
        took = await scene.until(
            lambda: _identities(scene) - before, case.limit(1.5), "no new socket file came after the stream was lost"
        )
        await scene.connected(lists=known)
    return f"a new socket file {took * 1000:.0f} ms after the stream was lost, and a new stream"


@CHECKS.add(
    69,
    "the plugin watcher's authority is accepted",
    expected="GetInfo with :authority %2Fvar%2F... is answered",
    rule="section 2.4: the watcher's own dial sets no authority, so the percent-encoded path is sent",
    cure="do not check :authority, or use an HTTP/2 server that accepts any",
    routes=WATCHER,
)
async def _authority(case: Case) -> str:
    async with case.node(autostart=False) as scene:
        scene.kubelet.paths.plugins_registry_dir.mkdir(parents=True, exist_ok=True)
        scene.kubelet.paths.device_plugin_dir.mkdir(parents=True, exist_ok=True)
        await scene.start()
        await scene.until(lambda: _sockets(scene), case.patience_for_connecting, "no socket appeared")
        info = await _info(scene, _sockets(scene)[0])
    return f"GetInfo answered: {info.name}"
