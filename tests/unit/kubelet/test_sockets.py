from __future__ import annotations

import errno
import os
import socket
import stat
import time
from pathlib import Path

import pytest

from kdp.kubelet.sockets import (
    UNBORN_SECONDS,
    bind_error,
    birthplace,
    is_answered,
    make_private,
    missing_right,
    remove_dead,
)


def test_the_place_of_birth_is_hidden_and_never_too_long() -> None:
    assert birthplace(Path("/d/kdp-x.sock")) == Path("/d/.kdp/.kdp-x.sock")
    for length in range(80, 107):
        path = Path("/d", "x" * (length - 3))
        assert len(os.fsencode(path)) == length
        born = birthplace(path)
        assert len(os.fsencode(born)) <= 107
        assert born.parent == Path("/d/.kdp")
        assert born.name.startswith(".")


@pytest.mark.parametrize("mask", [0o022, 0o777])
def test_the_private_directory_is_private_whatever_the_umask_is(tmp_path: Path, mask: int) -> None:
    place = birthplace(tmp_path / "x.sock").parent
    old = os.umask(mask)
    try:
        make_private(place)
    finally:
        os.umask(old)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    place.chmod(0o777)
    make_private(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["a file", "a link", "of somebody else"])
def test_a_private_directory_that_is_none_is_refused(tmp_path: Path, kind: str) -> None:
    place = birthplace(tmp_path / "x.sock").parent
    if kind == "a file":
        place.touch()
    elif kind == "a link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to("elsewhere")
    else:
        if os.geteuid():
            pytest.skip("only root can give a directory away")
        place.mkdir()
        os.chown(place, 65534, 65534)
    with pytest.raises(OSError, match="not a directory of this user; remove it"):
        make_private(place)


def test_hidden_dead_sockets_of_killed_processes_go(tmp_path: Path) -> None:
    """On the plugin watcher's route no kubelet removes them."""
    place = birthplace(tmp_path / "x.sock").parent
    make_private(place)
    dead = [birthplace(tmp_path / f"{number}.sock") for number in range(33)]
    for path in dead:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
        os.utime(path, (0, time.time() - 2 * UNBORN_SECONDS))
    with socket.socket(socket.AF_UNIX) as starting, socket.socket(socket.AF_UNIX) as live:
        starting.bind(str(place / ".starting"))  # refuses connections until it listens
        live.bind(str(place / ".live"))
        live.listen()
        os.utime(place / ".live", (0, 0))
        make_private(place)
        assert sorted(os.listdir(place)) == [".live", ".starting"]


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
    def error(path: Path) -> str:
        return bind_error(path, birthplace(path))

    none = tmp_path / "none"
    assert error(none / "x.sock") == f"cannot make a socket in {none}: No such file or directory"
    birthplace(tmp_path / "x").parent.mkdir()
    (there := birthplace(tmp_path / "there.sock")).touch()
    assert bind_error(tmp_path / "there.sock", there) == f"cannot make a socket in {tmp_path}: Address already in use"
    free = tmp_path / "free.sock"
    assert error(free) == f"cannot serve on {free}: gRPC refused the address"
    there.unlink()
    assert error(free) == f"cannot serve on {free}: gRPC refused the address"
    assert os.listdir(tmp_path) == [], "the try leaves nothing behind"
    assert missing_right(errno.ENOENT) == ""
    long = tmp_path / ("x" * 120)
    assert bind_error(long, long) == f"cannot make a socket in {tmp_path}: AF_UNIX path too long"


def test_a_right_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_right(errno.EROFS) == "; mount it writable"
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert missing_right(errno.EACCES) == (
        "; this process is user 65534 and the kubelet's directories belong to root: run it as user 0"
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert missing_right(errno.EACCES) == "", "root is refused for other reasons, as SELinux"
