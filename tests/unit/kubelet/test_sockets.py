from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from kdp.kubelet.sockets import bind_error, hidden, is_answered, missing_right, remove_dead


def test_the_hidden_name_is_hidden() -> None:
    assert hidden(Path("/d/kdp-x.sock")) == Path("/d/.kdp-x.sock")


def test_only_dead_sockets_of_ours_are_removed(tmp_path: Path) -> None:
    prefix = "kdp-widget-"
    with socket.socket(socket.AF_UNIX) as live, socket.socket(socket.AF_UNIX) as full:
        live.bind(str(tmp_path / f"{prefix}live.sock"))
        live.listen()
        full.bind(str(tmp_path / f"{prefix}full.sock"))
        full.listen(0)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.setblocking(False)
            waiting.connect_ex(str(tmp_path / f"{prefix}full.sock"))
            for name in (f"{prefix}dead.sock", "kdp-other-dead.sock", "kubelet.sock"):
                with socket.socket(socket.AF_UNIX) as dead:
                    dead.bind(str(tmp_path / name))
            (tmp_path / f"{prefix}file.txt").touch()
            (tmp_path / f"{prefix}directory.sock").mkdir()
            answers = {
                name: is_answered(tmp_path / f"{prefix}{name}.sock") for name in ("live", "full", "dead", "none")
            }
            assert answers == {"live": True, "full": True, "dead": False, "none": None}

            def is_ours(name: str) -> bool:
                return name.startswith(prefix) and name.endswith(".sock")

            assert remove_dead(tmp_path, is_ours) == [f"{prefix}dead.sock"]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {
        f"{prefix}live.sock",
        f"{prefix}full.sock",
        f"{prefix}file.txt",
        f"{prefix}directory.sock",
        "kdp-other-dead.sock",
        "kubelet.sock",
    }


def test_a_directory_that_is_not_there_has_nothing_to_remove(tmp_path: Path) -> None:
    assert remove_dead(tmp_path / "none", bool) == []


def test_why_no_socket_can_be_made(tmp_path: Path) -> None:
    none = tmp_path / "none"
    assert bind_error(none / "x.sock") == f"cannot make a socket in {none}: No such file or directory"
    (tmp_path / "there.sock").touch()
    assert bind_error(tmp_path / "there.sock") == f"cannot make a socket in {tmp_path}: Address already in use"
    free = tmp_path / "free.sock"
    assert bind_error(free) == f"cannot serve on {free}: gRPC refused the address"
    assert not free.exists(), "the try leaves nothing behind"
    assert missing_right(errno.ENOENT) == ""
    long = tmp_path / ("x" * 120)
    assert bind_error(long) == f"cannot make a socket in {tmp_path}: AF_UNIX path too long"


def test_a_right_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_right(errno.EROFS) == "; mount it writable"
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert missing_right(errno.EACCES) == (
        "; this process is user 65534 and the kubelet's directories are root's: run it as user 0"
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert missing_right(errno.EACCES) == "", "root is refused for other reasons, as SELinux"
