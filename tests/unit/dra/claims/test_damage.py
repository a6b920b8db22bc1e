"""What chaos found: damaged records of claims, and a disk or descriptors that fail after `released`."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until
from typing_extensions import override

import kdp
from kdp.dra.claims import prepare, releases
from kdp.dra.claims.prepare import JobOutcome
from kdp.model.claims import Claim

from .claim_objects import claim, result
from .claims_world import Widgets, World, running

DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-9]),
    "removed": lambda file: file.unlink(),
}


class Fragile(Widgets):
    """Once `released` has returned, nothing can be opened any more, until `heal`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._monkeypatch = monkeypatch
        self._open = os.open

    @override
    def released(self, devices: kdp.Allocation) -> None:
        super().released(devices)

        def refused(*_: Any, **__: Any) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        self._monkeypatch.setattr(os, "open", refused)

    def heal(self) -> None:
        self._monkeypatch.setattr(os, "open", self._open)


@pytest.fixture
def backend() -> Widgets:
    return Widgets()


@pytest.fixture
async def world(tmp_path: Path, backend: Widgets) -> AsyncIterator[World]:
    async with running(tmp_path, backend) as found:
        yield found


def record_of(world: World, names: Claim) -> Path:
    return world.preparer.store.directory / f"{names.uid}.json"


def copy_of(world: World, names: Claim) -> Path:
    return world.preparer.store.directory / f".{names.uid}.json.copy"


async def prepared(world: World, number: int, *devices: str, within: float | None = None) -> str:
    names = world.api.put(claim(number), [result(device, f"r{device}") for device in devices])
    if within is not None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(prepare, "PREPARE_SECONDS", within)
            return (await world.preparer.prepare([names]))[names.uid].error
    return (await world.preparer.prepare([names]))[names.uid].error


async def unprepared(world: World, number: int) -> str:
    names = claim(number)
    return (await world.preparer.unprepare([names]))[names.uid].error


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_device_of_a_claim_whose_record_is_damaged_is_not_given_away(world: World, damage: str) -> None:
    assert await prepared(world, 0, "w0") == ""
    DAMAGES[damage](record_of(world, claim(0)))
    assert "is already prepared for claim default/claim-0" in await prepared(world, 1, "w0")
    assert await prepared(world, 2, "w1") == ""


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_claim_whose_record_is_damaged_is_undone_and_leaves_nothing(
    world: World, backend: Widgets, damage: str
) -> None:
    assert await prepared(world, 0, "w0") == ""
    DAMAGES[damage](record_of(world, claim(0)))
    assert await unprepared(world, 0) == ""
    assert backend.calls[-1] == ("released", "claim-0", "rw0", ("w0",))
    assert backend.allocations[-1].state == {"times": 1}
    assert world.files == []
    assert world.preparer.store.set_aside == []


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_claim_whose_record_and_copy_are_damaged_is_undone_by_its_spec(
    world: World, backend: Widgets, damage: str
) -> None:
    assert await prepared(world, 0, "w0") == ""
    DAMAGES[damage](record_of(world, claim(0)))
    DAMAGES[damage](copy_of(world, claim(0)))
    assert await unprepared(world, 0) == ""
    assert backend.calls[-1] == ("released", "claim-0", "rw0", ("w0",))
    assert backend.allocations[-1].state == {}
    assert world.files == []


async def test_the_disk_failed_after_released_and_the_hook_was_repeated(
    world: World, backend: Widgets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each retry of the save called the hook again."""
    assert await prepared(world, 0, "w0") == ""
    fails, replaced = True, list[Path]()
    rename = os.rename

    def eio(source: Path, target: Path) -> None:
        if fails and any(call[0] == "released" for call in backend.calls):
            replaced.append(target)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(releases, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(os, "rename", eio)
    assert await unprepared(world, 0) == ""
    await until(lambda: replaced.count(record_of(world, claim(0))) > 5, "the save is retried")
    assert "cannot be written: Input/output error" in await prepared(world, 1, "w0", within=0.0)
    fails = False
    await until(lambda: not world.files)
    assert [call[0] for call in backend.calls] == ["allocate", "released"]
    assert await prepared(world, 1, "w0") == ""
    assert await unprepared(world, 1) == ""
    assert [call[0] for call in backend.calls] == ["allocate", "released"] * 2, "the next claim is released, too"


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_claim_that_is_gone_is_undone_although_its_record_is_damaged(
    world: World, backend: Widgets, damage: str
) -> None:
    assert await prepared(world, 0, "w0") == ""
    DAMAGES[damage](record_of(world, claim(0)))
    world.api.drop(claim(0))
    assert await world.preparer.collect(grace=3600) == [], "it is noticed, and may come back"
    assert await world.preparer.collect(grace=0) == [claim(0).uid]
    assert backend.given == set()
    assert world.files == []


async def test_a_claim_that_left_while_it_was_prepared_kept_its_devices_for_another_grace(world: World) -> None:
    assert await prepared(world, 0, "w0") == ""
    world.api.drop(claim(0))
    world.preparer._preparing[claim(0).uid] = asyncio.create_task(asyncio.sleep(60, JobOutcome()))
    assert await world.preparer.collect(grace=0.0) == []
    assert claim(0).uid in world.preparer._missing, "its grace has begun"
    world.preparer._preparing.pop(claim(0).uid).cancel()
    assert await world.preparer.collect(grace=0.0) == [claim(0).uid]


async def test_a_claim_of_which_nothing_is_known_leaves_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    assert await prepared(world, 0, "w0") == ""
    DAMAGES["cut"](record_of(world, claim(0)))
    DAMAGES["cut"](copy_of(world, claim(0)))
    DAMAGES["cut"](world.cdi.file("widget.example.com/claim", claim(0).uid))
    assert await unprepared(world, 0) == ""
    assert world.files == []
    assert "its devices are unknown, so released() was not called" in caplog.text
    caplog.clear()
    assert await unprepared(world, 0) == "", "now it is one that was never prepared"
    assert not caplog.records


async def test_released_is_called_once_although_there_are_no_descriptors_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Fragile(monkeypatch)
    async with running(tmp_path, backend) as world:
        assert await prepared(world, 0, "w0", "w1") == ""
        backend.calls.clear()
        monkeypatch.setattr(releases, "FIRST_PAUSE", 0.01)
        assert await unprepared(world, 0) == ""

        def is_over() -> bool:
            backend.heal()
            return not world.files

        await until(is_over)
        assert sorted(call[2] for call in backend.calls) == ["rw0", "rw1"]


async def test_a_spec_that_could_not_be_read_was_taken_for_none_and_nothing_was_released(
    world: World, backend: Widgets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chaos, seed 1907704913: the record was gone, no descriptor was free, and the claim's last trace was removed."""
    await prepared(world, 0, "w0")
    record_of(world, claim(0)).unlink()

    def refused(*_: Any, **__: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(world.preparer._files.locks, "claim", lambda _: nullcontext())
        patch.setattr(os, "open", refused)
        assert "cannot be read: Too many open files" in await unprepared(world, 0)
    assert await unprepared(world, 0) == ""
    assert [call[0] for call in backend.calls] == ["allocate", "released"]


async def test_a_directory_that_cannot_be_read_held_no_claims(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without a free descriptor, with Python 3.12 and later: one device was prepared for two claims."""
    assert await prepared(world, 0, "w0") == ""
    known = world.preparer.store.known

    def refused(*_: Any, **__: Any) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", refused)
        patched.setattr(os, "scandir", refused)
        assert "cannot be read: Too many open files" in await prepared(world, 1, "w0")
    assert world.preparer.store.known == known
