"""How a plugin comes to the kubelet over kubelet.sock, and how it is refused."""

from __future__ import annotations

import socket
from pathlib import Path

import anyio
import grpc
import grpc.aio
import pytest

from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1
from kdp.testing import CallError, NotReached, PluginConnection, PluginOptions, SimulatedKubelet, events

from .bare_plugin import RESOURCE, BarePlugin
from .conftest import MakePlugin


async def test_a_plugin_is_registered_in_the_kubelets_order(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    plugin = await serve(options=v1beta1.DevicePluginOptions(pre_start_required=True))

    assert await plugin.register(kubelet.paths.kubelet_socket) is None
    await kubelet.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 2}, registered=RESOURCE, streaming=RESOURCE)

    happened = [event.name for event in kubelet.events]
    assert happened == [
        "kubelet_started",
        "register_received",
        "dialed",
        "options_received",
        *(
            ["register_answered", "stream_opened"]
            if happened[4] == "register_answered"
            else ["stream_opened", "register_answered"]
        ),
        "list_received",
    ]
    [received] = kubelet.events.of(events.RegisterReceived)
    assert (received.version, received.endpoint, received.pre_start_required) == ("v1beta1", plugin.endpoint, True)
    assert {device.health for device in kubelet.devices(RESOURCE).values()} == {"Healthy"}
    assert await kubelet.plugin(RESOURCE).options() == PluginOptions(pre_start_required=True)
    assert kubelet.streams(RESOURCE) == 1


@pytest.mark.parametrize("endpoint", ["", "x" * 120])
async def test_a_socket_that_nobody_serves_cannot_be_dialed(profile: str, tmp_path: Path, endpoint: str) -> None:
    async with SimulatedKubelet(profile=profile, dial_timeout=0.3) as kubelet:
        directory = kubelet.paths.device_plugin_dir
        plugin = BarePlugin(tmp_path, endpoint="unused")
        answer = await plugin.register(kubelet.paths.kubelet_socket, endpoint=endpoint)
        assert answer == "UNKNOWN: failed to dial device plugin: context deadline exceeded"
        [failed] = kubelet.events.of(events.DialFailed)
        assert failed.socket_path == str(directory / endpoint)


async def test_register_blocks_until_the_options_are_there(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    plugin = await serve()
    asked, answer_now = anyio.Event(), anyio.Event()

    async def wait() -> None:
        asked.set()
        await answer_now.wait()

    plugin.before_options = wait
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(plugin.register, kubelet.paths.kubelet_socket)
        await asked.wait()
        assert not kubelet.events.of(events.RegisterAnswered)
        assert not kubelet.events.of(events.StreamOpened)
        answer_now.set()
    assert kubelet.events.of(events.RegisterAnswered)[-1].error is None


@pytest.mark.parametrize("profile", ["k134", "k137"])
async def test_the_end_of_the_call_ends_the_registration_where_the_version_does_so(
    kubelet: SimulatedKubelet, serve: MakePlugin
) -> None:
    plugin = await serve()
    answer_now = anyio.Event()
    plugin.before_options = answer_now.wait

    answer = await plugin.register(kubelet.paths.kubelet_socket, deadline=0.3)
    assert answer is not None
    assert answer.startswith("DEADLINE_EXCEEDED")
    await kubelet.until(lambda: kubelet.events.of(events.RegisterAnswered))
    answer_now.set()
    if kubelet.profile.register_governs_connecting:
        # The connection was given up with the call, so the resource never comes.
        plugin.before_options = None
        assert await plugin.register(kubelet.paths.kubelet_socket, resource="example.com/other") is None
        await kubelet.until(streaming="example.com/other")
        assert RESOURCE not in kubelet.capacity()
    else:
        # The kubelet goes on by itself: the plugin is registered although its call has failed.
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})


async def bytes_sent_to(path: Path, seen: bytearray) -> None:
    """Take one connection, answer with an empty SETTINGS frame, and keep what comes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as listener:
        listener.bind(str(path))
        listener.listen()
        await anyio.wait_readable(listener)
        connection, _ = listener.accept()
        with connection:
            connection.setblocking(False)
            connection.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
            while True:
                await anyio.wait_readable(connection)
                data = connection.recv(65536)
                if not data:
                    return
                seen += data


@pytest.mark.parametrize(("authority", "expected"), [("localhost", b"localhost"), (None, b"%2Fraw.sock")])
async def test_plugins_are_dialed_with_authority_localhost_and_the_watchers_with_the_path(
    tmp_path: Path, authority: str | None, expected: bytes
) -> None:
    path = tmp_path / "raw.sock"
    seen = bytearray()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bytes_sent_to, path, seen)
        connection = PluginConnection(str(path), authority=authority)
        await connection.dial()
        with pytest.raises(CallError, match="DeadlineExceeded"):
            await connection.options(timeout=0.3)
        await connection.close()
    assert expected in bytes(seen)


async def test_a_condition_that_does_not_come_true_tells_the_story(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    await connect()
    with pytest.raises(NotReached) as caught:
        await kubelet.until(allocatable={RESOURCE: 3}, timeout=0.1)
    text = str(caught.value)
    assert "not reached in 0.1 s: allocatable={'example.com/widget': 3}" in text
    assert "allocatable {'example.com/widget': 2}" in text
    assert text.index("register_received") < text.index("list_received")


async def test_unknown_methods_and_plugins_own_errors_reach_the_test(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    plugin = await connect()
    client = kubelet.plugin(RESOURCE)
    with pytest.raises(CallError) as caught:
        await client.call("Deallocate", b"")
    assert caught.value.code == grpc.StatusCode.UNIMPLEMENTED.name
    with pytest.raises(CallError, match=r"^rpc error: code = InvalidArgument desc = unknown device w9$"):
        await client.allocate(["w9"])
    replies = await client.allocate(["w0"], ["w1"], [])
    assert [reply.envs["WIDGETS"] for reply in replies] == ["w0", "w1", ""]
    assert plugin.calls[-1] == ("allocate", [["w0"], ["w1"], []])
