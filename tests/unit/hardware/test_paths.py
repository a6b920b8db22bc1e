"""Paths that match a pattern are followed, be their directories there or not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio
import asyncinotify
import pytest

from kdp.errors import InvalidValueError
from kdp.hardware import DirectoryWatch, Host, PathWatch, inotify
from kdp_testkit.patience import PATIENCE

pytestmark = pytest.mark.anyio


async def told(watch: PathWatch, change: Callable[[], object], wanted: set[str]) -> None:
    """Make a change and wait until all these paths were told."""
    change()
    found: set[str] = set()
    with anyio.fail_after(PATIENCE):
        while not wanted <= found:
            found |= await watch.changes()
    assert found == wanted


async def test_a_directory_that_came_later_was_never_watched(tmp_path: Path) -> None:
    host, state = Host(tmp_path), tmp_path / "run/acme/card0/state"
    async with host.watch("/run/acme/card*/state") as watch:

        def appear() -> None:
            state.parent.mkdir(parents=True)
            state.write_text("ok")

        await told(watch, appear, {"/run/acme/card0/state"})
        await told(watch, lambda: state.write_text("broken"), {"/run/acme/card0/state"})
        other = tmp_path / "run/acme/card1"
        other.mkdir()
        await told(watch, (other / "state").touch, {"/run/acme/card1/state"})
        (other / "state").unlink()
        other.rmdir()
        await told(watch, lambda: None, {"/run/acme/card1/state"})


async def test_a_file_that_is_replaced_is_told_and_its_neighbour_is_not(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("one", "two"):
        (tmp_path / "a" / name).write_text("1")
    async with Host(tmp_path).watch("/a/*") as watch:

        def replace() -> None:
            (tmp_path / ".draft").write_text("1")
            os.replace(tmp_path / ".draft", tmp_path / "a/one")

        await told(watch, replace, {"/a/one"})


async def test_a_change_before_the_first_question_is_told(tmp_path: Path) -> None:
    async with Host(tmp_path).watch("/a") as watch:
        (tmp_path / "a").touch()
        with anyio.fail_after(PATIENCE):
            assert await watch.changes() == {"/a"}


async def test_without_inotify_it_looks_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(asyncinotify, "Inotify", refuse)
    monkeypatch.setattr(inotify, "POLL", 0.01)
    async with Host(tmp_path).watch("/a") as watch:
        await told(watch, (tmp_path / "a").touch, {"/a"})


async def test_a_directory_that_may_not_be_read_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user has 128 of these, and a watch that failed is called again and again."""

    def refuse(_host: Host, pattern: str) -> list[str]:
        raise PermissionError(13, "Permission denied", pattern)

    def opened() -> int:
        links = (Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
        return sum("inotify" in os.readlink(link) for link in links if link.is_symlink())

    monkeypatch.setattr(Host, "glob", refuse)
    before, watch = opened(), Host(tmp_path).watch("/a/*")
    with pytest.raises(PermissionError):
        await watch.__aenter__()
    assert opened() == before


@pytest.mark.parametrize(("pattern", "rule"), [("/run/**/state", "must not have"), ("run/state", "must be absolute")])
def test_a_pattern_that_cannot_be_watched_is_refused(pattern: str, rule: str) -> None:
    with pytest.raises(InvalidValueError, match=rule):
        Host().watch(pattern)


async def test_a_watch_outside_of_async_with_waited_for_ever(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="nothing is watched yet"):
        DirectoryWatch().watch(tmp_path)
    with pytest.raises(RuntimeError, match="nothing is watched yet"):
        await DirectoryWatch().changes()
    with pytest.raises(RuntimeError, match="nothing is watched yet"):
        await Host(tmp_path).watch("/a").changes()


async def test_below_a_root_a_link_to_an_absolute_path_was_followed_out_of_it(tmp_path: Path) -> None:
    """As ``/var/run`` of Debian: the directory of the container was watched, and nothing was ever told."""
    (tmp_path / "run/acme").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    async with Host(tmp_path).watch("/var/run/acme/*") as watch:
        await told(watch, (tmp_path / "run/acme/state").touch, {"/var/run/acme/state"})


async def test_below_a_loop_of_links_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/a")
    async with Host(tmp_path).watch("/a/b") as watch:

        def mend() -> None:
            (tmp_path / "a").unlink()
            (tmp_path / "a").mkdir()
            (tmp_path / "a/b").touch()

        await told(watch, mend, {"/a/b"})
