from __future__ import annotations

import errno
import gc
import gzip
import io
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from kdp.errors import ConfigurationError
from kdp.hardware import Host
from kdp.hardware.capture import capture
from kdp.hardware.snapshot import archive as snapshots

from ..recorded import NAMES, file

LISTS = {"KERNEL": "Linux 6 x86_64\n", "DEVNODES": "", "UNREADABLE": ""}


def archive(path: Path, lists: dict[str, str] = LISTS, *more: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in lists.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
        for member in more:
            tar.addfile(member, io.BytesIO(b"\0" * member.size))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def refusal(path: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Host.of_snapshot(path)
    text = str(caught.value)
    assert text.startswith(f"snapshot {path}: ")
    assert "\n" not in text
    return text.removeprefix(f"snapshot {path}: ")


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_what_was_recorded_survives_a_journey(name: str, tmp_path: Path) -> None:
    """Read, unpack, look at through Host, write, read: nothing is lost and no error is another one."""
    before = snapshots.read(file(name))
    host = Host.of_snapshot(file(name))
    after = capture(host, [*before.files, *before.links, *before.nodes, *before.unreadable, *before.directories])
    assert (after.kernel, after.files, after.links) == (before.kernel, before.files, before.links)
    assert (after.nodes, after.unreadable) == (before.nodes, before.unreadable)
    assert before.directories <= after.directories
    snapshots.write(after, tmp_path / "a.tar.gz")
    assert snapshots.read(tmp_path / "a.tar.gz") == after
    again = tmp_path / "b.tar.gz"
    snapshots.write(after, again)
    assert again.read_bytes() == (tmp_path / "a.tar.gz").read_bytes()


def test_errors_are_replayed_and_nodes_are_there(tmp_path: Path) -> None:
    unreadable = (
        "/sys/a Invalid argument\n/sys/b Operation not supported\n/sys/c d No such device\n/sys/e binary, 40 bytes\n"
    )
    nodes = "/dev/x c 231:192 0666\n/dev/y b 7:0 0600\n"
    host = Host.of_snapshot(archive(tmp_path / "s.tar.gz", {**LISTS, "UNREADABLE": unreadable, "DEVNODES": nodes}))
    expected = {"/sys/a": errno.EINVAL, "/sys/b": errno.EOPNOTSUPP, "/sys/c d": errno.ENODEV, "/sys/e": errno.EIO}
    for path, code in expected.items():
        assert host.exists(path)
        with pytest.raises(OSError, match=r".") as caught:
            host.read_bytes(path)
        assert caught.value.errno == code
        with pytest.raises(OSError, match=r".") as caught:  # also past Host nobody gets a value
            host.path(path).read_bytes()
    assert host.glob("/sys/*") == sorted(expected)
    assert (host.device_type("/dev/x"), host.device_type("/dev/y")) == ("char", "block")
    assert host.device_number("/dev/x") == (231, 192)
    assert host.device_node("/dev/x") == "/dev/x"
    assert host.device_nodes() == ["/dev/x", "/dev/y"]
    assert not host.is_real
    with pytest.raises(OSError, match=r".") as caught:
        os.open(host.path("/dev/x"), os.O_RDWR)
    assert caught.value.errno == errno.ENXIO


def test_an_attribute_that_is_only_written_is_refused_to_root_too(tmp_path: Path) -> None:
    info = member("sys/remove")
    info.mode = 0o200
    host = Host.of_snapshot(archive(tmp_path / "s.tar.gz", LISTS, info))
    with pytest.raises(PermissionError):
        host.read_bytes("/sys/remove")


@pytest.mark.thorough
def test_the_directory_is_removed_with_the_host(tmp_path: Path) -> None:
    host = Host.of_snapshot(file("rxe-6.1-half-removed"))
    root = host.root
    assert root.is_dir()
    del host
    gc.collect()
    assert not root.exists()


def test_the_owner_of_an_unpacked_tree_can_change_what_the_node_lets_nobody_write(tmp_path: Path) -> None:
    """Recorded trees had the permissions of the recording, so that tests without root could not change an attribute."""
    attribute, written = member("sys/class/x/vendor"), member("sys/class/x/remove")
    attribute.mode, written.mode = 0o444, 0o200
    archive(tmp_path / "s.tar.gz", LISTS, attribute, written)
    snapshots.unpack(snapshots.read(tmp_path / "s.tar.gz"), tmp_path / "node")
    host = Host(tmp_path / "node")

    found = [path for path in host.root.rglob("*") if not path.is_symlink()]
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o700 == 0o700 for path in found if path.is_dir())
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600 for path in found if path.is_file())
    assert host.look("/sys/class/x/vendor") == (stat.S_IFREG | 0o444, 0)
    assert host.look("/sys/class/x/remove") == (stat.S_IFREG | 0o200, 0)
    host.path("/sys/class/x/vendor").chmod(0o664)  # what a test changes is what counts
    assert host.look("/sys/class/x/vendor") == (stat.S_IFREG | 0o664, 0)


# -- bad files ---------------------------------------------------------------------------------------------------------


def test_what_is_no_snapshot(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == "cannot be read (No such file or directory)"
    assert refusal(tmp_path) == "cannot be read (Is a directory)"
    (tmp_path / "text").write_text("hello")
    assert refusal(tmp_path / "text").startswith("is not a snapshot; expected a .tar.gz")
    (tmp_path / "gz").write_bytes(gzip.compress(b"hello"))
    assert refusal(tmp_path / "gz").startswith("is not a snapshot, or is damaged; expected a .tar.gz")
    (tmp_path / "zeros").write_bytes(gzip.compress(b"\0" * 10240))
    assert refusal(tmp_path / "zeros").startswith("is not a snapshot: it has no DEVNODES")
    lists = {name: text for name, text in LISTS.items() if name != "UNREADABLE"}
    assert refusal(archive(tmp_path / "lacks", lists)).startswith("is not a snapshot: it has no UNREADABLE; expected")


def test_a_cut_or_damaged_one_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    data = file("rxe-6.1-active").read_bytes()
    cut = tmp_path / "cut"
    for length in [*range(2, 60, 7), *range(60, len(data), 2997), len(data) - 1]:
        cut.write_bytes(data[:length])
        assert refusal(cut) == "is cut off; take it again or copy it again"
    cut.write_bytes(data[:2000] + bytes(40) + data[2040:])
    assert "is damaged" in refusal(cut)
    plain = gzip.decompress(data)
    cut.write_bytes(gzip.compress(plain[:20_000]))  # cut before it was packed
    assert refusal(cut) == "is cut off; take it again or copy it again"


def test_a_newer_format_says_what_to_do(tmp_path: Path) -> None:
    newer = archive(tmp_path / "s.tar.gz", {"FORMAT": "kdp-snapshot 2\n", **LISTS})
    assert refusal(newer) == "is of format 2, and this kdp reads format 1; install a newer kdp-sdk"
    other = archive(tmp_path / "s.tar.gz", {"FORMAT": "other\n", **LISTS})
    assert refusal(other).startswith("is not a snapshot: its FORMAT says 'other'")
    assert snapshots.read(archive(tmp_path / "s.tar.gz", {"FORMAT": "kdp-snapshot 1 more\n", **LISTS})).kernel


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (member("/etc/x"), "leads out of the archive"),
        (member("sys/../../x"), "leads out of the archive"),
        (member("sys/l", tarfile.SYMTYPE, "/etc/passwd"), "only relative links may be in a snapshot"),
        (member("sys/l", tarfile.SYMTYPE, "../../x"), "out of the archive"),
        (member("sys/l", tarfile.LNKTYPE, "KERNEL"), "is not a file, a directory, or a link"),
        (member("dev/x", tarfile.CHRTYPE), "is not a file, a directory, or a link"),
    ],
)
def test_what_could_harm_is_refused(bad: tarfile.TarInfo, reason: str, tmp_path: Path) -> None:
    assert reason in refusal(archive(tmp_path / "s.tar.gz", LISTS, bad))


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    link = member("sys/l", tarfile.SYMTYPE, "../dev")
    assert "lies below /sys/l" in refusal(archive(tmp_path / "s.tar.gz", LISTS, link, member("sys/l/x")))
    nodes = {**LISTS, "DEVNODES": "/sys/l/x c 1:3 0666\n"}
    assert "lies below /sys/l" in refusal(archive(tmp_path / "s.tar.gz", nodes, link))
    twice = {**LISTS, "DEVNODES": "/sys/x c 1:3 0666\n"}
    assert "/sys/x is in it twice" in refusal(archive(tmp_path / "s.tar.gz", twice, member("sys/x")))
    climbing = {**LISTS, "UNREADABLE": "/sys/../../x Invalid argument\n"}
    assert "leads out of the archive" in refusal(archive(tmp_path / "s.tar.gz", climbing))


@pytest.mark.parametrize("line", ["/dev/x c 1:3", "/dev/x c 1.3 0666", "/dev/x q 1:3 0666"])
def test_a_bad_line_is_shown(line: str, tmp_path: Path) -> None:
    text = refusal(archive(tmp_path / "s.tar.gz", {**LISTS, "DEVNODES": f"{line}\n"}))
    assert repr(line) in text


def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_BYTES", 1 << 20)
    (tmp_path / "bomb").write_bytes(gzip.compress(b"\0" * (2 << 20)))
    assert refusal(tmp_path / "bomb") == "holds more than 1 MiB, which no snapshot does"
    monkeypatch.setattr(snapshots, "MAX_ENTRIES", 2)
    assert refusal(file("dfl-6.1")) == "holds more than 2 files, which no snapshot does"


def test_a_hooks_thread_that_used_it_last_left_its_directory_behind(tmp_path: Path) -> None:
    code = """
import shutil, sys, threading
from kdp.hardware import Host
remove, begun = shutil.rmtree, threading.Event()
def slowly(*args, **more):
    if threading.current_thread() is not threading.main_thread():
        begun.set()
        threading.Event().wait()  # the process ends meanwhile
    remove(*args, **more)
shutil.rmtree = slowly
hosts = [Host.of_snapshot(sys.argv[1])]
threading.Thread(target=hosts.clear, daemon=True).start()
begun.wait()
"""
    command = [sys.executable, "-c", code, str(file("rxe-6.1-active"))]
    subprocess.run(command, check=True, timeout=60, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
