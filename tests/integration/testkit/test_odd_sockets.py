"""kubelet.sock in every unusable state, as a client of it sees it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.faults import FaultyKubelet

from kdp.testing import ScenarioError

from .test_lifecycle import connects


async def test_kubelet_sock_in_every_unusable_state() -> None:
    async with FaultyKubelet() as kubelet:
        await _every_state(kubelet)


async def _every_state(kubelet: FaultyKubelet) -> None:
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


def test_the_held_socket_is_closed_at_the_end(tmp_path: Path) -> None:
    kubelet = FaultyKubelet(tmp_path, autostart=False)
    kubelet.faults.socket_not_listening()
    kubelet.faults.release()
    assert connects(kubelet.paths.kubelet_socket) == "ConnectionRefusedError"
