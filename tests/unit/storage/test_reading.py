"""What may lie where a file of kdp's is expected, or a file of an administrator: none of it makes anybody wait."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kdp.storage import reading
from kdp.storage.reading import UnusableFileError


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a socket": make_socket,
    "a device node": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_regular_file_is_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "f"
    KINDS[kind](path)
    with pytest.raises(UnusableFileError) as caught:
        reading.read(path)
    assert caught.value.strerror == f"it is {kind}, not a regular file"


@pytest.mark.parametrize("name", ["f\0", "f\udfff"])
def test_a_name_that_no_file_has_is_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="no file can have this name"):
        reading.read(tmp_path / name)


def test_a_fifo_that_takes_the_place_of_a_file_while_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stat = tmp_path / "f", os.stat
    path.write_text("")

    def swapped(*given: object, **more: object) -> os.stat_result:
        found = stat(*given, **more)  # type: ignore[arg-type]
        path.unlink()
        os.mkfifo(path)
        return found

    monkeypatch.setattr(os, "stat", swapped)
    with pytest.raises(UnusableFileError, match="FIFO"):
        reading.read(path)


def test_a_link_is_followed_unless_the_directory_is_our_own(tmp_path: Path) -> None:
    """Kubernetes mounts a ConfigMap as ``config.yaml -> ..data/config.yaml``, ``..data -> ..2026_01_01``."""
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026/c.yaml").write_text("text")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "c.yaml").symlink_to("..data/c.yaml")
    assert reading.read_text(tmp_path / "c.yaml") == "text"
    with pytest.raises(UnusableFileError, match="a symbolic link"):
        reading.read(tmp_path / "c.yaml", follow=False)


def test_a_link_that_takes_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "f").symlink_to("there")
    with pytest.raises(OSError, match="symbolic link"):
        reading.open_file(tmp_path / "f", os.O_RDWR | os.O_CREAT, follow=False)
    assert not (tmp_path / "there").exists()


def test_a_file_above_its_limit_is_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100)
    assert reading.read(path, limit=100) == b"x" * 100
    with pytest.raises(UnusableFileError) as caught:
        reading.read(path, limit=99)
    assert (caught.value.errno, caught.value.strerror) == (errno.EFBIG, "it has more than 99 bytes")
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a terabyte of nothing
    with pytest.raises(UnusableFileError, match="more than 67108864 bytes"):
        reading.read(path)


def test_files_of_sysfs_and_procfs_whose_sizes_say_nothing_are_read() -> None:
    assert reading.read("/proc/self/comm").endswith(b"\n")
    assert reading.read("/proc/sys/kernel/osrelease").strip()


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa")
    assert reading.read_text(tmp_path / "f") == "a"


def piped(path: Path, data: bytes) -> threading.Thread:
    """Make a FIFO, and have a thread write to it as soon as it is opened."""
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=[data], daemon=True)
    writer.start()
    return writer


def test_a_pipe_that_a_person_named_is_read_once(tmp_path: Path) -> None:
    """``--config <(sops -d x.yaml)`` was refused: it is a FIFO."""
    text = "x" * 100_000  # more than a pipe holds
    writer = piped(tmp_path / "f", text.encode())
    assert reading.read_text(tmp_path / "f") == text
    writer.join()
    assert reading.read_text(tmp_path / "f") == text


@pytest.mark.parametrize("text", ["text", ""])
def test_an_open_pipe_whose_writer_has_gone_is_read_to_its_end(tmp_path: Path, text: str) -> None:
    mine, others = os.pipe()
    os.write(others, text.encode())
    os.close(others)
    (tmp_path / "f").symlink_to(f"/proc/self/fd/{mine}")
    assert reading.read_text(tmp_path / "f") == text
    os.close(mine)


def test_a_pipe_that_nobody_writes_to_its_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PIPE_DEADLINE", 0.01)
    os.mkfifo(tmp_path / "f")
    for held in (False, True):
        writer = os.open(tmp_path / "f", os.O_RDWR) if held else None
        with pytest.raises(UnusableFileError, match=r"not written to its end within 0\.01 s"):
            reading.read_text(tmp_path / "f")
        if writer is not None:
            os.close(writer)


def test_a_pipe_above_the_limit_is_not_read_on(tmp_path: Path) -> None:
    writer = piped(tmp_path / "f", b"x" * 100)
    with pytest.raises(UnusableFileError, match="more than 99 bytes"):
        reading.read_text(tmp_path / "f", limit=99)
    writer.join()
