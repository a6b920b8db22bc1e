"""`storage.forks`: what a forked child must not have, since it would have it when its parent was killed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from tests.forking import FORK, parent

from kdp.storage import forks, locks

SERVING = f"""
import os, resource, socket, sys
from kdp.storage import forks
listening = socket.socket(socket.AF_UNIX)
if sys.argv[2] == "descriptors":
    forks.keep(listening.fileno())
else:
    forks.keep_served("server", sys.argv[1])
listening.bind(sys.argv[1])
listening.listen()
accepted, _ = listening.accept()
if sys.argv[2] == "descriptors":
    forks.keep(accepted.fileno())
if len(sys.argv) > 3:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
{FORK}
os.wait()
"""


@pytest.mark.parametrize("told", [["descriptors"], ["address"], ["address", "with one free descriptor"]])
def test_a_forked_worker_does_not_serve_for_its_killed_parent(told: list[str], tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with parent(SERVING, str(path), *told) as process:
        with socket.socket(socket.AF_UNIX) as caller:
            while caller.connect_ex(str(path)):
                assert process.poll() is None
            process.kill_beside(int(process.line()))
            caller.settimeout(10)
            assert caller.recv(1) == b"", "the connection has ended"
        with socket.socket(socket.AF_UNIX) as probe, pytest.raises(ConnectionRefusedError):
            probe.connect(str(path))


def test_a_child_keeps_what_its_parent_no_longer_serves(tmp_path: Path) -> None:
    forks.keep_served("server", str(tmp_path / "s.sock"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s.sock"))
        assert list(forks._serving()) == [listening.fileno()]  # pyright: ignore[reportPrivateUsage]
        forks.forget_served("server")
        forks.forget_served("server")
        assert list(forks._serving()) == []  # pyright: ignore[reportPrivateUsage]
        assert listening.getsockname() == str(tmp_path / "s.sock"), "looking closes nothing"


def test_descriptors_that_others_closed_are_forgotten(tmp_path: Path) -> None:
    """Each generation of a plugin would leave one."""
    for number in range(300):
        descriptor = locks.open_file(tmp_path / str(number))
        forks.keep(descriptor)
        os.close(descriptor)
    many = [locks.open_file(tmp_path / str(number)) for number in range(300)]
    for descriptor in many:
        forks.keep(descriptor)
    assert len(forks._kept) >= 300  # pyright: ignore[reportPrivateUsage]
    for descriptor in many:
        os.close(descriptor)
    last = locks.open_file(tmp_path / "0")
    forks.keep(last)
    assert len(forks._kept) < 100  # pyright: ignore[reportPrivateUsage]
    locks.close(last)
