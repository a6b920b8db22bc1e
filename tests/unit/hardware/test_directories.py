"""The directory watch on real directories, with real inotify."""

# ruff: noqa: ASYNC240 - short looks at local files

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from kdp.hardware import DirectoryWatch
from kdp_testkit.patience import PATIENCE

pytestmark = pytest.mark.anyio


async def until(watch: DirectoryWatch, *wanted: tuple[str, str]) -> set[tuple[str, str]]:
    """Collect changes until all of these have come."""
    found: set[tuple[str, str]] = set()
    with anyio.fail_after(PATIENCE):
        while not found >= set(wanted):
            found |= await watch.changes()
    return found


async def test_what_comes_goes_and_is_renamed_is_named(tmp_path: Path) -> None:
    async with DirectoryWatch() as watch:
        assert watch.watch(tmp_path)
        assert watch.watch(tmp_path), "a second time does no harm"
        assert watch.directories == {str(tmp_path)}
        (tmp_path / "gone").touch()
        (tmp_path / "gone").unlink()
        (tmp_path / "old").touch()
        (tmp_path / "old").rename(tmp_path / "new")
        (tmp_path / "directory").mkdir()
        directory = str(tmp_path)
        names = {name for _, name in await until(watch, (directory, "directory"))}
        assert names == {"gone", "old", "new", "directory"}
    assert watch.refused is None
    assert not watch.overflowed


async def test_a_burst_is_one_answer(tmp_path: Path) -> None:
    async with DirectoryWatch() as watch:
        watch.watch(tmp_path)
        for number in range(500):
            (tmp_path / f"file-{number}").touch()
        with anyio.fail_after(PATIENCE):
            assert len(await watch.changes()) == 500


async def test_an_event_that_is_no_change_is_not_told(tmp_path: Path) -> None:
    """The kernel confirms that a watch was taken back; the answer to that was an empty set."""
    kept, left = tmp_path / "kept", tmp_path / "left"
    kept.mkdir()
    left.mkdir()
    async with DirectoryWatch() as watch:
        watch.watch(kept)
        watch.watch(left)
        watch.unwatch(left)
        answers: list[set[tuple[str, str]]] = []

        async def read() -> None:
            answers.append(await watch.changes())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            for _ in range(10):  # until the farewell has been read
                await anyio.lowlevel.checkpoint()
            (kept / "file").touch()
        assert answers == [{(str(kept), "file")}]


async def test_one_directory_under_two_names_tells_both(tmp_path: Path) -> None:
    """The kernel has one watch for it; whoever compares paths must find the one that he knows."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    async with DirectoryWatch() as watch:
        assert watch.watch(tmp_path / "real")
        assert watch.watch(tmp_path / "link")
        (tmp_path / "real/a").touch()
        await until(watch, (f"{tmp_path}/real", "a"), (f"{tmp_path}/link", "a"))
        watch.unwatch(tmp_path / "real")
        (tmp_path / "real/b").touch()
        assert (f"{tmp_path}/real", "b") not in await until(watch, (f"{tmp_path}/link", "b"))


@pytest.mark.parametrize("how", ["removed", "moved away"])
async def test_a_directory_that_is_gone_says_look_and_can_be_watched_again(tmp_path: Path, how: str) -> None:
    directory = tmp_path / "device-plugins"
    directory.mkdir()
    async with DirectoryWatch() as watch:
        for number in range(3):
            assert watch.watch(directory)
            if how == "removed":
                shutil.rmtree(directory)
            else:
                directory.rename(tmp_path / f"old-{number}")
            await until(watch, (str(directory), ""))
            assert watch.directories == frozenset()
            assert not watch.watch(directory)
            directory.mkdir()
        assert watch.watch(directory)
        (directory / "kubelet.sock").touch()
        await until(watch, (str(directory), "kubelet.sock"))


async def test_an_overflow_says_look_at_everything(tmp_path: Path) -> None:
    """Nobody reads while more happens than the kernel's queue can hold."""
    for name in ("noisy", "quiet"):
        (tmp_path / name).mkdir()
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    async with DirectoryWatch() as watch:
        watch.watch(tmp_path / "noisy")
        watch.watch(tmp_path / "quiet")
        noisy = os.open(tmp_path / "noisy", os.O_RDONLY)
        for number in range(limit // 2 + 2):  # each is two events that cannot be put together
            name = f"{number % 7}"
            os.mkdir(name, dir_fd=noisy)
            os.rmdir(name, dir_fd=noisy)
        os.close(noisy)
        (tmp_path / "quiet/lost").touch()
        found = await until(watch, (f"{tmp_path}/noisy", ""), (f"{tmp_path}/quiet", ""))
        assert (f"{tmp_path}/quiet", "lost") not in found
        assert watch.overflowed
        (tmp_path / "quiet/heard").touch()
        await until(watch, (f"{tmp_path}/quiet", "heard"))


REFUSED = """
import asyncio, os, resource, sys
from kdp.hardware import DirectoryWatch

async def main(directory):
    low = os.open("/", os.O_RDONLY)
    os.close(low)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    async with DirectoryWatch() as watch:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        print(watch.refused)
        print(watch.watch(directory), watch.directories)
        watch.unwatch(directory)
        os.mkdir(os.path.join(directory, "x"))
        try:
            await asyncio.wait_for(watch.changes(), 0.05)
        except TimeoutError:
            print("polls")

asyncio.run(main(sys.argv[1]))
"""


def test_where_inotify_is_refused_it_says_so_and_never_answers(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", REFUSED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["inotify is refused: Too many open files", "False frozenset()", "polls"]
