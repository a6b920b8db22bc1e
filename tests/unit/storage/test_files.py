from __future__ import annotations

import errno
import itertools
import os
import signal
import stat
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kdp.storage import files, locks

from .killed import NEW, STEPS

ROOT = Path(__file__).parents[3]
SYNCS: tuple[files.Sync, ...] = ("nothing", "content", "name")


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.unit.storage.killed", *map(str, arguments)]


def test_a_file_has_its_permissions_whatever_the_umask_is(tmp_path: Path) -> None:
    file = tmp_path / "f"
    old = os.umask(0o077)
    try:
        files.replace(file, b"one", mode=0o644)
    finally:
        os.umask(old)
    assert file.read_bytes() == b"one"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    files.replace(file, b"other", mode=0o644)
    assert file.read_bytes() == b"other"
    assert names(tmp_path) == ["f"]


@pytest.mark.parametrize("sync", SYNCS)
def test_what_must_last_is_synced(tmp_path: Path, sync: files.Sync, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        order.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        order.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    files.replace(tmp_path / "f", b"", sync=sync)
    wanted = {"nothing": ["rename"], "content": ["file", "rename"], "name": ["file", "rename", "directory"]}
    assert order == wanted[sync]


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_process_killed_at_any_step_leaves_the_old_file_or_the_new_one(tmp_path: Path, before: bytes | None) -> None:
    """With all steps, also those that make the name last."""
    at, found = 0, before
    for at in itertools.count():
        directory = tmp_path / str(at)
        directory.mkdir()
        file = directory / "f"
        if before is not None:
            file.write_bytes(before)
        done = subprocess.run(
            command("replace", file, "name", at), cwd=ROOT, capture_output=True, text=True, check=False
        )
        found = file.read_bytes() if file.exists() else None
        assert found in (before, NEW), done.stderr
        left = [name for name in names(directory) if name != "f"]
        assert all(name.startswith(".f.") and name.endswith(".draft") for name in left), left
        files.remove_drafts(directory, older_than=-1)
        assert names(directory) == ([] if found is None else ["f"])
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert found == NEW
    assert at == 12, "before and after each step"


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_leaves_the_old_file_and_no_draft(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    descriptors = os.listdir("/proc/self/fd")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, step, full)
        with pytest.raises(OSError, match="No space left"):
            files.replace(file, b"new")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["f"]
    assert os.listdir("/proc/self/fd") == descriptors, "nothing is left open"


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    file, ended = tmp_path / "f", threading.Event()
    whole = {b"a" * 7, b"b" * 70_000}
    files.replace(file, b"a" * 7)

    def write() -> None:
        for _ in range(50):
            for data in whole:
                files.replace(file, data, sync="nothing")
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not ended.is_set():
        assert file.read_bytes() in whole
    writer.join()


def test_a_locked_file_is_locked_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename
    seen: list[bool] = []

    def renamed(source: Path, target: Path) -> None:
        with source.open() as other:
            seen.append(locks.lock(other.fileno()))
        rename(source, target)

    monkeypatch.setattr(os, "rename", renamed)
    descriptor = files.replace_locked(tmp_path / "f", b"one")
    assert seen == [False]
    assert locks.is_at(descriptor, tmp_path / "f")
    os.close(descriptor)
    with (tmp_path / "f").open() as other:
        assert locks.lock(other.fileno())


def test_a_removed_file_stays_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").touch()
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    files.remove(tmp_path / "f")
    files.remove(tmp_path / "f")
    assert len(synced) == 2
    files.remove(tmp_path / "nowhere" / "f")
    assert names(tmp_path) == []


def test_only_old_drafts_of_these_files_are_removed(tmp_path: Path) -> None:
    for name in (".a.old.draft", ".b.old.draft", "a.old.draft", ".a.old.tmp", ".a.new.draft"):
        (tmp_path / name).touch()
        if "old" in name:
            os.utime(tmp_path / name, (0, 0))
    assert files.remove_drafts(tmp_path, "a.") == [tmp_path / ".a.old.draft"]
    assert names(tmp_path) == sorted([".b.old.draft", "a.old.draft", ".a.old.tmp", ".a.new.draft"])
    assert files.remove_drafts(tmp_path / "nowhere") == []


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    """Of the whole file and of a byte; each excludes its own kind only."""
    file = tmp_path / "lock"
    file.touch()
    with (
        subprocess.Popen(command("lock", file), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder,
        file.open("r+b") as ours,
    ):
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert not locks.lock(ours.fileno())
        assert not locks.lock(ours.fileno(), 7)
        assert locks.lock(ours.fileno(), 8)
        holder.kill()
        holder.wait()
        assert locks.lock(ours.fileno())
        assert locks.lock(ours.fileno(), 7)


def test_a_file_system_without_locks_excludes_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refused)
    monkeypatch.setattr("fcntl.fcntl", refused)
    with (tmp_path / "f").open("w") as file:
        assert locks.lock(file.fileno())
        assert locks.lock(file.fileno(), 1)
    assert struct.calcsize("hhqqi0q") == 32, "struct flock of a 64-bit kernel"


def test_a_replaced_file_is_another_one(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.touch()
    with file.open() as stream:
        assert locks.is_at(stream.fileno(), file)
        files.replace(file, b"")
        assert not locks.is_at(stream.fileno(), file)
        file.unlink()
        assert not locks.is_at(stream.fileno(), file)


def test_a_draft_replaces_its_file_without_a_free_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "f"
    files.replace(file, b"old")
    draft = files.draft(file, b"new")
    assert file.read_bytes() == b"old"
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", lambda *_: pytest.fail("it opens something"))
        draft.commit()
    assert file.read_bytes() == b"new"
    assert names(tmp_path) == ["f"]
