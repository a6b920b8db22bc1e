"""The kubelet misbehaves on command, each fault as its docstring says."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import anyio
import pytest

from kdp.testing import RegisterFault, ScenarioError, SimulatedKubelet, events

from .bare_plugin import RESOURCE
from .conftest import MakePlugin
from .test_lifecycle import connects


@pytest.fixture
def profile() -> str:
    return "k137"


async def test_a_delayed_reply_comes_after_the_stream(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    plugin = await serve()
    kubelet.faults.delay_register(0.3)
    assert await plugin.register(kubelet.paths.kubelet_socket) is None
    names = [event.name for event in kubelet.events]
    assert names.index("list_received") < names.index("register_answered")
    assert kubelet.events.of(events.RegisterAnswered)[0].seconds >= 0.3


async def test_register_answers_what_it_is_told(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    plugin = await serve()
    kubelet.faults.refuse_register("device plugin already connected: /x", times=2)
    kubelet.faults.refuse_register("busy", code="UNAVAILABLE")
    answers = [await plugin.register(kubelet.paths.kubelet_socket) for _ in range(4)]
    assert answers == ["UNKNOWN: device plugin already connected: /x"] * 2 + ["UNAVAILABLE: busy", None]


async def test_a_fault_for_one_resource_lets_the_others_pass(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    """A plugin with several resources registers them in any order; a scenario about one of them must meet that one."""
    plugin = await serve()
    kubelet.faults.register(RegisterFault(code="UNKNOWN", text="no", resource="example.com/another"))
    assert await plugin.register(kubelet.paths.kubelet_socket) is None
    kubelet.faults.register(RegisterFault(code="UNKNOWN", text="no", resource=RESOURCE))
    assert await plugin.register(kubelet.paths.kubelet_socket) == "UNKNOWN: no"


async def test_register_hangs_until_the_callers_deadline(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    plugin = await serve()
    kubelet.faults.hang_register(times=None)
    answer = await plugin.register(kubelet.paths.kubelet_socket, deadline=0.2)
    assert answer is not None
    assert answer.startswith("DEADLINE_EXCEEDED")
    kubelet.faults.clear()
    assert await plugin.register(kubelet.paths.kubelet_socket) is None


async def test_the_connection_breaks_instead_of_an_answer(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    plugin = await serve()
    kubelet.faults.drop_register()
    answer = await plugin.register(kubelet.paths.kubelet_socket)
    assert answer is not None
    assert answer.startswith("UNAVAILABLE")
    assert await plugin.register(kubelet.paths.kubelet_socket) is None


async def test_accepted_but_never_dialed(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    plugin = await serve()
    kubelet.faults.accept_without_dialing()
    assert await plugin.register(kubelet.paths.kubelet_socket) is None
    assert plugin.calls == []
    with pytest.raises(ScenarioError, match="no plugin is connected"):
        kubelet.plugin(RESOURCE)


async def test_dialed_but_never_watched(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    plugin = await serve()
    kubelet.faults.dial_without_stream()
    assert await plugin.register(kubelet.paths.kubelet_socket) is None
    assert plugin.calls == [("options", None)]
    await kubelet.plugin(RESOURCE).options()
    assert plugin.streams == 0


async def test_dialed_late(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    plugin = await serve()
    kubelet.faults.dial_late(0.2)
    assert await plugin.register(kubelet.paths.kubelet_socket) is None
    received = kubelet.events.of(events.RegisterReceived)[0]
    assert kubelet.events.of(events.Dialed)[0].time - received.time >= 0.2


async def test_dialed_twice_feeds_one_table_where_the_version_allows_it(serve: MakePlugin) -> None:
    async with SimulatedKubelet(profile="k136") as kubelet:
        plugin = await serve(directory=kubelet.paths.device_plugin_dir)
        kubelet.faults.dial_twice()
        assert await plugin.register(kubelet.paths.kubelet_socket) is None
        await kubelet.until(lambda: kubelet.streams(RESOURCE) == 2)
        await plugin.until(lambda: plugin.streams == 2)


async def test_kubelet_sock_in_every_unusable_state(kubelet: SimulatedKubelet) -> None:
    path = kubelet.paths.kubelet_socket
    with pytest.raises(ScenarioError, match=r"the kubelet is running: kubelet.sock cannot be a directory"):
        kubelet.faults.socket_is_directory()
    await kubelet.crash()
    kubelet.faults.socket_absent()
    assert connects(path) == "FileNotFoundError"
    kubelet.faults.socket_dead()
    assert path.is_socket()
    assert connects(path) == "ConnectionRefusedError"
    kubelet.faults.socket_not_listening()
    assert connects(path) == "ConnectionRefusedError"
    kubelet.faults.socket_is_file()
    assert connects(path) == "ConnectionRefusedError"
    kubelet.faults.socket_is_directory()
    assert path.is_dir()
    with pytest.raises(OSError, match="Address already in use"):
        await kubelet.start()
    assert not kubelet.is_running
    kubelet.faults.socket_absent()
    await kubelet.start()
    kubelet.faults.socket_mode(0)
    assert path.stat().st_mode & 0o777 == 0
    if os.geteuid() != 0:
        assert connects(path) == "PermissionError"
    kubelet.faults.socket_mode(0o755)
    kubelet.faults.recreate_socket_file()
    assert connects(path) == "connected"
    kubelet.faults.socket_absent()
    assert connects(path) == "FileNotFoundError"


async def test_the_directory_is_wiped_and_replaced(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    directory = kubelet.paths.device_plugin_dir
    plugin = await serve()
    (directory / "state").touch()
    kubelet.faults.wipe_sockets()
    assert not plugin.path.exists()
    assert (directory / "state").exists()
    kubelet.faults.wipe_files()
    assert {path.name for path in directory.iterdir()} == {"kubelet.sock"}
    other = await serve()
    kubelet.faults.delete_socket(other.endpoint)
    assert not other.path.exists()
    with pytest.raises(ScenarioError, match="cannot be replaced under it"):
        kubelet.faults.replace_directory()
    await kubelet.crash()
    inode = directory.stat()
    kubelet.faults.replace_directory()
    assert list(directory.iterdir()) == []
    assert (directory.stat().st_ino, directory.stat().st_ctime_ns) != (inode.st_ino, inode.st_ctime_ns)


async def test_faults_can_be_combined_and_counted(kubelet: SimulatedKubelet) -> None:
    kubelet.faults.register(RegisterFault(dial=False, delay=0.0), times=2)
    assert [kubelet.faults.armed.next_register().dial for _ in range(3)] == [False, False, True]
    with pytest.raises(ScenarioError, match="a fault cannot meet 0 calls"):
        kubelet.faults.hang_register(times=0)


async def test_a_restart_in_the_middle_of_register_ends_the_call(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    plugin = await serve()
    kubelet.faults.hang_register()
    answers: list[str | None] = []

    async def register() -> None:
        answers.append(await plugin.register(kubelet.paths.kubelet_socket))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(register)
        await kubelet.until(lambda: kubelet.events.of(events.RegisterReceived))
        await kubelet.restart()
    assert answers[0] is not None
    assert answers[0].startswith("UNAVAILABLE")


def test_the_held_socket_is_closed_at_the_end(tmp_path: Path) -> None:
    kubelet = SimulatedKubelet(tmp_path, autostart=False)
    kubelet.faults.socket_not_listening()
    kubelet.faults.release()
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(kubelet.paths.kubelet_socket))
