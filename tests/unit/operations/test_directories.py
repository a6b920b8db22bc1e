"""Whether directories take files, on real directories and on a disk that does not answer."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import pytest
from tests.nobody import as_nobody
from tests.waiting import until

from kdp.operations import directories as module
from kdp.operations.directories import Directories, why_no_file_in
from kdp_testkit.patience import PATIENCE


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_PAUSE", 0.01)


async def test_a_directory_that_is_mended_takes_files_again(tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()  # root may write to any directory, so that rights would refuse nothing
    directories = Directories({"cdi": tmp_path / "cdi", "state": tmp_path / "new" / "state"})
    assert not directories.writable
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(directories.follow)
        await until(lambda: directories.writable == {"cdi": False, "state": True})
        (tmp_path / "cdi").unlink()
        await until(lambda: directories.writable == {"cdi": True, "state": True})
        tasks.cancel_scope.cancel()


async def test_a_disk_that_does_not_answer_takes_no_file_and_keeps_no_other_one_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_there, looks = threading.Event(), list[str]()

    def look(_: str, place: Path) -> str | None:
        looks.append(place.name)
        if place.name == "slow":
            is_there.wait(PATIENCE)
        return None

    places = {"cdi": tmp_path / "slow", "state": tmp_path / "fast"}
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    monkeypatch.setattr(module, "why_no_file_in", look)
    directories = Directories(places)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(directories.follow)
        await until(lambda: directories.writable == {"cdi": False, "state": True})
        await until(lambda: looks.count("fast") > 2)
        assert looks.count("slow") == 1  # no second thread waits for a disk that hangs
        is_there.set()
        await until(lambda: directories.writable == {"cdi": True, "state": True})
        tasks.cancel_scope.cancel()


async def test_a_path_of_the_kubelet_that_does_not_exist_was_told_as_writable(tmp_path: Path) -> None:
    """kdp makes the other ones, if their parent lets it."""
    directories = Directories({"plugins": tmp_path / "typo", "state": tmp_path / "kdp"})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(directories.follow)
        await until(lambda: directories.writable == {"plugins": False, "state": True})
        (tmp_path / "typo").mkdir()
        await until(lambda: directories.writable == {"plugins": True, "state": True})
        tasks.cancel_scope.cancel()


def test_nothing_was_told_of_a_kubelets_directory_below_a_closed_one(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(0)
    with as_nobody():
        assert why_no_file_in("plugins", tmp_path / "closed/below") is not None
