from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp.errors import InvalidNameError
from kdp.names import MAX_SOCKET_PATH_BYTES
from kdp.plugin.socket import SocketNames, bind_error, hidden, missing_right, remove_dead

from .. import strategies
from ..strategies import effort

DIRECTORY = Path("/var/lib/kubelet/device-plugins")


def test_a_name_says_whose_it_is_and_is_never_used_twice() -> None:
    names = [SocketNames(DIRECTORY, "example.com/widget") for _ in range(3)]
    assert names[0].prefix == "kdp-example.com_widget-"
    paths = {n.path(generation) for n in names for generation in range(1, 50)}
    assert len(paths) == 3 * 49
    assert all(path.name.startswith(names[0].prefix) and path.suffix == ".sock" for path in paths)


def test_the_hidden_name_is_hidden() -> None:
    assert hidden(DIRECTORY / "kdp-x.sock") == DIRECTORY / ".kdp-x.sock"


@effort(200)
@given(
    strategies.resource_names, st.integers(1, 999_999), st.text("dü", min_size=1, max_size=60).map(lambda d: "/" + d)
)
def test_every_name_can_be_bound_or_the_directory_is_refused(resource: str, generation: int, directory: str) -> None:
    try:
        names = SocketNames(Path(directory), resource)
    except InvalidNameError:
        # "kdp-", 8 of the resource, a token of 8 and a generation of 6 digits with their hyphens, ".sock" and a dot.
        assert len(os.fsencode(directory)) + 1 + 4 + 8 + 1 + 8 + 1 + 6 + 5 + 1 > MAX_SOCKET_PATH_BYTES
        return
    path = hidden(names.path(generation))
    assert len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES
    assert path.parent == Path(directory)


@effort(100)
@given(strategies.resource_names, strategies.resource_names, st.sampled_from(["/d", "/" + "d" * 60]))
def test_two_resources_have_two_prefixes(one: str, other: str, directory: str) -> None:
    same = SocketNames(Path(directory), one).prefix == SocketNames(Path(directory), other).prefix
    assert same == (one == other)


def test_a_directory_without_room_is_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidNameError, match=r"^socket path '/d+/\.kdp-.*': must have at most 107 bytes, this has "):
        SocketNames(Path("/" + "d" * 90), "example.com/widget")


def test_only_dead_sockets_of_this_resource_are_removed(tmp_path: Path) -> None:
    prefix = SocketNames(tmp_path, "example.com/widget").prefix
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
            assert remove_dead(tmp_path, prefix) == [f"{prefix}dead.sock"]
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
    assert remove_dead(tmp_path / "none", "kdp-") == []


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
