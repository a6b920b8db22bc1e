"""A kubelet, its socket and its directory in every wrong shape: wait, say why once, and be there when it is right."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable

import pytest
from tests.faults import FaultyKubelet

from kdp.deviceplugin import registration, session

from ..deviceplugin.helpers import RESOURCE, Widgets, connected, own_sockets, registers, running, until
from .catalogue import Fault
from .conftest import Said, Saw, state_of


@pytest.fixture
async def down(k: FaultyKubelet) -> FaultyKubelet:
    """A kubelet that does not run."""
    await k.stop()
    return k


SHAPES: dict[Fault, tuple[Callable[[FaultyKubelet], None], str]] = {
    Fault.SOCKET_ABSENT: (lambda k: k.faults.socket_absent(), "there is no kubelet.sock"),
    Fault.SOCKET_DEAD: (lambda k: k.faults.socket_dead(), "no process listens on kubelet.sock"),
    Fault.SOCKET_NOT_LISTENING: (lambda k: k.faults.socket_not_listening(), "bound"),
    Fault.SOCKET_DIRECTORY: (lambda k: k.faults.socket_is_directory(), "is not a socket"),
}


@pytest.mark.parametrize("fault", SHAPES, ids=lambda fault: fault.name)
async def test_no_kubelet_to_register_with(down: FaultyKubelet, saw: Saw, said: Said, fault: Fault) -> None:
    """Scenarios 21 and 22, faults 11 to 14."""
    shape, words = SHAPES[fault]
    shape(down)
    async with running(down, Widgets("w0", "w1")) as manager:
        sentence = await said(words)
        await until(lambda: words in str(manager.status().resources[RESOURCE].reason))
        saw(fault, sentence, state_of(manager))
        assert own_sockets(down.paths.device_plugin_dir) == set()
        down.faults.socket_absent()
        down.faults.release()
        await down.start()
        await down.until(allocatable={RESOURCE: 2})
        assert len(registers(down)) == 1
        assert await said(words) == sentence


async def test_a_regular_file_is_no_kubelet_either(down: FaultyKubelet, said: Said) -> None:
    down.faults.socket_is_file()
    async with running(down, Widgets("w0")):
        await said("is not a socket")
        down.faults.socket_absent()
        await down.start()
        await down.until(allocatable={RESOURCE: 1})


async def test_a_listener_that_does_not_answer(
    down: FaultyKubelet, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "REGISTER_DEADLINE", 0.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute:
        down.faults.socket_absent()
        mute.bind(os.fspath(down.paths.kubelet_socket))
        mute.listen()
        async with running(down, Widgets("w0")):
            await said("did not answer")
            down.faults.socket_absent()
            await down.start()
            await down.until(allocatable={RESOURCE: 1})


async def test_the_directory_is_replaced_by_another_one(k: FaultyKubelet, saw: Saw, said: Said) -> None:
    """Scenario 24 without a mount that pins the old one: the name means the new directory, so all is well again."""
    directory = k.paths.device_plugin_dir
    async with connected(k, Widgets("w0", "w1")) as manager:
        await k.crash()
        os.rename(directory, directory.with_name("old"))
        sentence = await said("the plugin directory does not exist")
        saw(Fault.DIRECTORY_ABSENT, sentence, state_of(manager))
        directory.mkdir()
        await k.start()
        await k.until(allocatable={RESOURCE: 2})
        assert len(registers(k)) == 2
    shutil.rmtree(directory.with_name("old"))


async def test_the_directory_is_removed_and_made_again_at_once(k: FaultyKubelet) -> None:
    async with connected(k, Widgets("w0")):
        await k.crash()
        k.faults.replace_directory()
        await k.start()
        await k.until(allocatable={RESOURCE: 1})
        # The new directory is watched as the old one was.
        await k.restart()
        await k.until(allocatable={RESOURCE: 1})


@pytest.mark.parametrize("wipe", ["wipe_sockets", "wipe_files"])
async def test_a_wiped_directory_costs_no_living_stream(k: FaultyKubelet, saw: Saw, said: Said, wipe: str) -> None:
    """Scenario 27."""
    backend = Widgets("w0", "w1")
    async with connected(k, backend) as manager:
        getattr(k.faults, wipe)()
        assert own_sockets(k.paths.device_plugin_dir) == set()
        sentence = await said("was removed")
        saw(Fault.DIRECTORY_WIPED, sentence, state_of(manager))
        (await backend.report()).fault("w0", "XID 79")
        await k.until(allocatable={RESOURCE: 1})
        assert len(registers(k)) == 1
        k.drop_stream(RESOURCE)
        await k.until(lambda: len(registers(k)) == 2, streaming=RESOURCE)


async def test_a_directory_wiped_during_registration_is_a_new_try(
    k: FaultyKubelet, saw: Saw, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "STREAM_DEADLINE", 30.0)
    k.faults.dial_without_stream()
    async with running(k, Widgets("w0", "w1")) as manager:
        await until(lambda: str(manager.status().resources.get(RESOURCE)).find("awaiting") > 0)
        k.faults.accept_without_dialing(times=None)
        k.faults.wipe_sockets()
        sentence = await said("was removed")
        await until(lambda: manager.status().resources[RESOURCE].state == "awaiting stream")
        saw(Fault.DIRECTORY_WIPED_EARLY, sentence, state_of(manager))
        k.faults.clear()
        k.faults.wipe_sockets()
        await k.until(allocatable={RESOURCE: 2})
        endpoints = [received.endpoint for received in registers(k)]
        assert len(endpoints) == len(set(endpoints))


REFUSALS: dict[Fault, str] = {
    Fault.REGISTER_VERSION: (
        'requested API version "v1beta1" is not supported by kubelet. Supported version is ["v2"]'
    ),
    Fault.REGISTER_NAME: f'the ResourceName "{RESOURCE}" is invalid',
    Fault.REGISTER_DIAL: "failed to dial device plugin: context deadline exceeded",
    Fault.REGISTER_CONNECTED: "device plugin already connected: {socket}",
}


@pytest.mark.parametrize("fault", REFUSALS, ids=lambda fault: fault.name)
async def test_register_is_refused(
    k: FaultyKubelet, saw: Saw, said: Said, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """Scenarios 28 to 31."""
    monkeypatch.setattr(session, "REFUSED_PAUSE", 0.5)
    text = REFUSALS[fault].format(socket=k.paths.device_plugin_dir / "earlier.sock")
    k.faults.refuse_register(text, times=None)
    async with running(k, Widgets("w0", "w1")) as manager:
        sentence = await said("not registered: ")
        assert (text in sentence) is (fault is not Fault.REGISTER_CONNECTED)  # whose path is another one each time
        await until(lambda: manager.status().resources[RESOURCE].state == "waiting")
        saw(fault, sentence, state_of(manager))
        await k.until(lambda: len(registers(k)) >= 3)
        k.faults.clear()
        await k.until(allocatable={RESOURCE: 2})
        endpoints = [received.endpoint for received in registers(k)]
        assert len(endpoints) == len(set(endpoints))
        assert await said("not registered: ") == sentence


async def test_register_is_not_answered(
    k: FaultyKubelet, saw: Saw, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "REGISTER_DEADLINE", 0.2)
    k.faults.hang_register(times=2)
    async with running(k, Widgets("w0")) as manager:
        sentence = await said("did not answer")
        await until(lambda: manager.status().resources[RESOURCE].state == "registering")
        saw(Fault.REGISTER_HANGS, sentence, state_of(manager))
        await k.until(allocatable={RESOURCE: 1})


async def test_registered_and_no_stream(
    k: FaultyKubelet, saw: Saw, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 15."""
    monkeypatch.setattr(session, "STREAM_DEADLINE", 0.2)
    k.faults.dial_without_stream(times=2)
    async with running(k, Widgets("w0")) as manager:
        sentence = await said("opened no stream")
        await until(lambda: manager.status().resources[RESOURCE].state == "awaiting stream")
        saw(Fault.NO_STREAM, sentence, state_of(manager))
        await k.until(allocatable={RESOURCE: 1})


async def test_the_plugin_watcher_refuses(k: FaultyKubelet, saw: Saw, said: Said) -> None:
    """Scenario 66: another plugin of this name is still connected under our path, says the kubelet."""
    from kdp.testing import PluginConnection

    await k.crash()  # the test speaks to the plugin itself
    async with running(k, Widgets("w0"), registration="watcher") as manager:
        registry = k.paths.plugins_registry_dir
        await until(lambda: [name for name in own_sockets(registry) if not name.startswith(".")])
        [name] = own_sockets(registry)
        connection = PluginConnection(os.fspath(registry / name), authority=None)
        await connection.dial()
        assert (await connection.info()).name == RESOURCE
        await connection.notify(
            registered=False, error="RegisterPlugin error -- plugin registration failed with err: x"
        )
        sentence = await said("plugin watcher did not register")
        await connection.close()
        await until(lambda: own_sockets(registry) and name not in own_sockets(registry))
        await until(lambda: manager.status().resources[RESOURCE].state == "registering")
        saw(Fault.WATCHER_REFUSES, sentence, state_of(manager))
        await k.start()
        await k.until(allocatable={RESOURCE: 1})
