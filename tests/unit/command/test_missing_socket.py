"""A state directory without a socket: is no plugin running, or can it not be asked?"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdp.command.found_sockets import why_no_socket
from kdp.kubelet.paths import KubeletPaths

LOCK = "example.com_w.device-plugin.lock"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kdp-") as name:
        yield Path(name)


@pytest.fixture
def paths(folder: Path) -> KubeletPaths:
    found = KubeletPaths.simulated(folder / "kubelet")
    found.device_plugin_dir.mkdir(parents=True)
    return found


@pytest.fixture
def state(folder: Path) -> Path:
    made = folder / "state"
    made.mkdir()
    return made


def test_without_a_trace_no_plugin_is_said_to_run(state: Path, paths: KubeletPaths) -> None:
    (state / LOCK).touch()
    absence = why_no_socket(state, paths)
    assert (absence.seen, absence.is_running) == (f"no plugin has a socket in {state}", False)


def test_a_directory_that_does_not_exist_was_said_to_have_no_socket(folder: Path, paths: KubeletPaths) -> None:
    absence = why_no_socket(folder / "none", paths)
    assert absence.seen == f"the state directory {folder}/none does not exist"
    assert "--state-dir" in absence.remedy
    (folder / "file").touch()
    assert why_no_socket(folder / "file", paths).seen == f"the state directory {folder}/file is no directory"


def test_a_held_lock_shows_that_a_plugin_runs(state: Path, paths: KubeletPaths) -> None:
    (state / "other.lock").touch()
    with (state / LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        absence = why_no_socket(state, paths)
    assert absence.is_running
    assert absence.seen == (f"no plugin has a socket in {state}, although process {os.getpid()} holds the lock {LOCK}")
    assert "makes a removed socket again within 10 s" in absence.remedy
    assert not why_no_socket(state, paths).is_running


def test_a_lock_that_the_kernel_listed_twice_had_two_holders(state: Path, paths: KubeletPaths) -> None:
    (state / LOCK).touch()
    locks = state / "locks"
    line = f"1: FLOCK  ADVISORY  READ 4711 08:01:{(state / LOCK).stat().st_ino} 0 EOF\n"
    locks.write_text(line * 2)
    said = why_no_socket(state, paths, locks=locks).seen
    assert said.endswith(f", although process 4711 holds the lock {LOCK}")


def test_a_socket_of_the_kubelets_shows_that_a_plugin_runs(folder: Path, paths: KubeletPaths) -> None:
    with socket.socket(socket.AF_UNIX) as serving:
        serving.bind(os.fspath(paths.device_plugin_dir / "kdp-example.com_w-1-1.sock"))
        serving.listen()
        pid = os.fork()  # a process does not count its own sockets
        if not pid:
            found = why_no_socket(folder / "none", paths)
            said = f"does not exist, although process {os.getppid()} answers the kubelet on kdp-example.com_w-1-1.sock"
            os._exit(0 if found.is_running and found.seen.endswith(said) else 1)
        assert os.waitpid(pid, 0)[1] == 0
