"""The kubelet misbehaves on command; most of its faults are played to a plugin in tests/integration/faults."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kdp.testing import RegisterFault, ScenarioError, SimulatedKubelet

from .bare_plugin import RESOURCE
from .conftest import MakePlugin
from .test_lifecycle import connects


async def test_a_fault_for_one_resource_lets_the_others_pass(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    """A plugin with several resources registers them in any order; a scenario about one of them must meet that one."""
    plugin = await serve()
    kubelet.faults.register(RegisterFault(code="UNKNOWN", text="no", resource="example.com/another"))
    assert await plugin.register(kubelet.paths.kubelet_socket) is None
    kubelet.faults.register(RegisterFault(code="UNKNOWN", text="no", resource=RESOURCE))
    assert await plugin.register(kubelet.paths.kubelet_socket) == "UNKNOWN: no"


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


def test_the_held_socket_is_closed_at_the_end(tmp_path: Path) -> None:
    kubelet = SimulatedKubelet(tmp_path, autostart=False)
    kubelet.faults.socket_not_listening()
    kubelet.faults.release()
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(kubelet.paths.kubelet_socket))
