"""The plugins' sockets of a node, and those of pods that only look like them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.mounted import NODE, show_mounts, show_plugin

from kdp.command.found_sockets import found_sockets

UID = "3f8a5a0e-6f0c-4a58-9a3e-0e6f7c1b2d3e"


@pytest.fixture
def node() -> Iterator[Path]:
    with TemporaryDirectory(prefix="kdp-") as folder:
        root = Path(folder)
        (root / "state").mkdir()
        (root / "k/pods" / UID / "volumes/kubernetes.io~empty-dir/run").mkdir(parents=True)
        yield root


@pytest.fixture
def listening(node: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the socket of a pod, at which this process listens."""
    run = node / "k/pods" / UID / "volumes/kubernetes.io~empty-dir/run"
    with ExitStack() as stack:
        made = stack.enter_context(socket.socket(socket.AF_UNIX))
        monkeypatch.chdir(run)  # the whole path may be longer than an address
        made.bind("plugin.sock")
        made.listen()
        monkeypatch.chdir("/")
        yield run / "plugin.sock"


def test_a_plugin_in_a_pod_is_found(node: Path, listening: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    show_plugin(monkeypatch, node / "proc", (node / "state").resolve())
    assert found_sockets(node / "state", node / "k") == [listening]


def test_root_believed_every_pod_with_such_a_volume(
    node: Path, listening: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant's words were in the doctor's remedies, for an administrator to paste."""
    show_mounts(monkeypatch, node / "proc", {"self": NODE, str(os.getpid()): "9 8 0:50 / / rw - overlay overlay rw\n"})
    assert listening.is_socket()
    assert found_sockets(node / "state", node / "k") == []


def test_a_dead_socket_of_a_pod_is_nobodys(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    show_plugin(monkeypatch, node / "proc", (node / "state").resolve())
    run = node / "k/pods" / UID / "volumes/kubernetes.io~empty-dir/run"
    monkeypatch.chdir(run)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("plugin.sock")
    assert found_sockets(node / "state", node / "k") == []
