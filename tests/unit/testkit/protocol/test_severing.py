"""A connection is broken, and no other one that looks like it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kdp_testkit.protocol.severing import sever

LISTEN = """
import os, socket, sys
os.chdir(sys.argv[1])
listener = socket.socket(socket.AF_UNIX)
listener.bind("plugin.sock")
listener.listen()
print("listening", flush=True)
held = []
while True:
    held.append(listener.accept())
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


def connected(path: Path, stack: ExitStack) -> socket.socket:
    connection = stack.enter_context(socket.socket(socket.AF_UNIX))
    connection.connect(os.fspath(path))
    connection.settimeout(0.0)
    return connection


def listening(path: Path, stack: ExitStack) -> None:
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(os.fspath(path))
    listener.listen()


def listening_elsewhere(directory: Path, stack: ExitStack) -> None:
    """Listen in another process that knows the directory by another path."""
    directory.mkdir()
    child = stack.enter_context(
        subprocess.Popen([sys.executable, "-c", LISTEN, os.fspath(directory)], stdout=subprocess.PIPE)
    )
    stack.callback(child.kill)
    assert child.stdout is not None
    child.stdout.readline()


def is_broken(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


def test_a_socket_of_the_same_name_elsewhere_is_left_alone(tmp_path: Path, stack: ExitStack) -> None:
    """Plugins with a fixed socket name, judged beside one another, lost their streams to each other's kubelets."""
    paths = [tmp_path / name / "plugin.sock" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        listening(path, stack)
    mine, other = (connected(path, stack) for path in paths)
    assert sever(os.fspath(paths[0]))
    assert is_broken(mine)
    assert not is_broken(other)


def test_a_hidden_name_is_the_same(tmp_path: Path, stack: ExitStack) -> None:
    hidden, path = tmp_path / ".plugin.sock", tmp_path / "plugin.sock"
    listening(hidden, stack)
    hidden.rename(path)
    mine = connected(path, stack)
    assert sever(os.fspath(path))
    assert is_broken(mine)


def test_two_that_call_their_paths_the_same_are_told_apart(tmp_path: Path, stack: ExitStack) -> None:
    for name in ("a", "b"):
        listening_elsewhere(tmp_path / name, stack)
    mine, other = (connected(tmp_path / name / "plugin.sock", stack) for name in ("a", "b"))
    assert sever(os.fspath(tmp_path / "a" / "plugin.sock"))
    assert is_broken(mine)
    assert not is_broken(other)


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    assert not sever(os.fspath(tmp_path / "plugin.sock"))


def test_when_ours_is_gone_the_one_of_the_same_name_is_left_alone(tmp_path: Path, stack: ExitStack) -> None:
    """Sockets of DRA drivers all have one name: the end of one node cut the only connection of another."""
    path = tmp_path / "b" / "plugin.sock"
    path.parent.mkdir()
    listening(path.with_name(".plugin.sock"), stack)
    other = connected(path.with_name(".plugin.sock"), stack)
    path.with_name(".plugin.sock").rename(path)
    assert not sever(os.fspath(tmp_path / "a" / "plugin.sock"))
    assert not is_broken(other)


def test_one_of_the_same_name_that_was_bound_in_a_hidden_directory_is_left_alone(
    tmp_path: Path, stack: ExitStack
) -> None:
    """The end of one node cut the connection to the driver of the next one."""
    born, path = tmp_path / "b" / ".kdp" / ".plugin.sock", tmp_path / "b" / "plugin.sock"
    born.parent.mkdir(parents=True)
    listening(born, stack)
    born.rename(path)
    other = connected(path, stack)
    assert not sever(os.fspath(tmp_path / "a" / "plugin.sock"))
    assert not is_broken(other)
    assert sever(os.fspath(path))
    assert is_broken(other)
