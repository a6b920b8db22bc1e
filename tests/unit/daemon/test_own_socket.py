"""Whose the place of the unix socket is: dead predecessors, living ones, links, and files of others."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kdp.daemon.own_socket import OwnSocket, PlaceTakenError, path_in
from kdp.kubelet.sockets import is_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "a.sock"


@contextmanager
def made(path: Path) -> Iterator[OwnSocket]:
    own = OwnSocket(path)
    with own.listening:
        yield own
    own.close()


def test_only_its_user_can_connect_from_the_first_moment_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    listen = socket.socket.listen

    def spy(self: socket.socket, backlog: int) -> None:
        modes.append(stat.S_IMODE(os.lstat(self.getsockname()).st_mode))
        listen(self, backlog)

    monkeypatch.setattr(socket.socket, "listen", spy)
    before = os.umask(0)
    try:
        with made(path):
            assert (modes, stat.S_IMODE(path.lstat().st_mode)) == ([0o600], 0o600)
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_a_dead_predecessors_socket_is_replaced_and_ones_own_removed(path: Path) -> None:
    OwnSocket(path).listening.close()
    assert is_answered(path) is False
    with made(path):
        assert is_answered(path) is True
    assert list(path.parent.iterdir()) == []


def test_a_living_ones_socket_is_not_stolen(path: Path) -> None:
    with made(path):
        with pytest.raises(PlaceTakenError, match=r"a\.sock': another process answers there; end that one"):
            OwnSocket(path)
        assert is_answered(path) is True
        assert [each.name for each in path.parent.iterdir()] == ["a.sock"]


def test_whatever_else_has_its_name_is_neither_followed_nor_removed(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    target = tmp_path / "target"
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(os.fspath(target))
    makers: dict[str, Callable[[], object]] = {
        "a link": lambda: path.symlink_to(target),
        "a link ": lambda: path.symlink_to(tmp_path / "nowhere"),
        "a file": lambda: path.write_text("x"),
        "a file ": path.mkdir,
        "a file  ": lambda: os.mkfifo(path),
    }
    for what, make in makers.items():
        make()
        before = path.lstat()
        with pytest.raises(PlaceTakenError, match=f"{what.strip()} is there, which is left alone; remove it"):
            OwnSocket(path)
        assert os.path.samestat(path.lstat(), before)
        path.rmdir() if stat.S_ISDIR(before.st_mode) else path.unlink()
    assert target.is_socket()
    assert not (tmp_path / "nowhere").exists()


def test_another_users_dead_socket_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    OwnSocket(path).listening.close()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(PlaceTakenError, match=r"user \d+'s socket is there"):
        OwnSocket(path)
    assert path.is_socket()


def test_what_took_its_place_meanwhile_is_not_removed(path: Path) -> None:
    own = OwnSocket(path)
    own.listening.close()
    with made(path):
        own.close()
        assert is_answered(path) is True


def test_a_process_has_the_same_name_at_each_start_and_another_one_a_different_name() -> None:
    def name_of(mode: str, keys: list[str], directory: str = "/var/lib/kdp") -> str:
        return path_in(Path(directory), mode, keys).name

    one = name_of("device-plugin", ["example.com/b", "example.com/a"])

    assert one == name_of("device-plugin", ["example.com/a", "example.com/b"])
    assert one.startswith("example.com_a-")
    assert one.endswith(".sock")
    assert one != name_of("dra", ["example.com/b", "example.com/a"])
    assert one != name_of("device-plugin", ["example.com/a"])
    assert len(name_of("dra", ["x" * 300])) < 60
