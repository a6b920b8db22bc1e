"""``prepare_container`` in a DRA driver: once for each claim and boot, before Prepare answers."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
from tests.waiting import until
from typing_extensions import override

import kdp
from kdp.cluster.api import ApiError
from kdp.dra.claims import prepare
from kdp.storage import files
from kdp.supervision.supervisor import Deadlines

from .claim_objects import claim, result
from .claims_world import Widgets, World, running


class Cards(Widgets):
    """``prepare_container`` fails for a request if it is told to, or hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: str | None = None
        self.ready = threading.Event()
        self.ready.set()

    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        self._told("prepare_container", devices)
        devices.state["tested"] = devices.state.get("tested", 0) + 1
        self.ready.wait(30)
        if devices.request == self.refuses:
            raise kdp.AllocationError("the self-test fails")

    @property
    def hooks(self) -> list[str]:
        return [f"{hook} {request}" for hook, _, request, _ in self.calls]


@pytest.fixture
def backend() -> Cards:
    return Cards()


@pytest.fixture
async def world(tmp_path: Path, backend: Cards) -> AsyncIterator[World]:
    async with running(tmp_path, backend, deadlines=Deadlines(prepare_container=1.0)) as found:
        yield found


async def prepared(world: World, number: int = 0) -> str:
    [outcome] = (await world.preparer.prepare([claim(number)])).values()
    return outcome.error


async def unprepared(world: World) -> str:
    [outcome] = (await world.preparer.unprepare([claim()])).values()
    return outcome.error


ALLOCATES = ["allocate a", "allocate b"]
PRE_STARTS = ["prepare_container a", "prepare_container b"]


async def test_in_dra_mode_prepare_container_was_never_called(world: World, backend: Cards) -> None:
    """A safety check in it passed. Now it follows `allocate`, with its state, and `released` gets the state of both."""
    world.api.put(claim(), [result("w0", "a"), result("w1", "b")])
    assert await prepared(world) == ""
    assert backend.hooks == [*ALLOCATES, *PRE_STARTS]
    assert await unprepared(world) == ""
    assert [each.state for each in backend.allocations[-2:]] == [{"times": 1, "tested": 1}] * 2


async def test_no_second_prepare_repeats_it_in_the_same_boot(world: World, backend: Cards) -> None:
    """Another pod shares the claim, the kubelet restarts, the driver is updated: a pod runs on the claim."""
    world.api.put(claim(), [result("w0", "a"), result("w1", "b")])
    assert await prepared(world) == ""
    assert await prepared(world) == ""
    await world.restart()
    assert await prepared(world) == ""
    assert backend.hooks == [*ALLOCATES, *PRE_STARTS]
    await world.restart(boot_id="boot-2")
    assert await prepared(world) == ""
    assert backend.hooks == [*ALLOCATES, *PRE_STARTS] * 2


async def test_a_repeated_allocate_is_followed_by_the_hook_again(world: World, backend: Cards) -> None:
    """`allocate` may undo the preparation; no pod runs on the claim yet."""
    world.api.put(claim(), [result("w0", "a"), result("w1", "b")])
    backend.refuses = "b"
    assert await prepared(world) == "the self-test fails"
    assert world.spec(claim()) is None, "no container can get the devices"
    backend.refuses = None
    await world.restart()
    assert await prepared(world) == ""
    assert backend.hooks == [*ALLOCATES, *PRE_STARTS] * 2
    assert backend.allocations[-1].state["tested"] == 2, "the hook finds the state that it left before it refused"


async def test_a_claim_whose_record_is_lost_has_no_second_call_because_a_pod_may_run(
    world: World, backend: Cards
) -> None:
    world.api.put(claim(), [result("w0", "a")])
    assert await prepared(world) == ""
    for lost in ("record", "record again"):
        for file in world.preparer.store.directory.iterdir():  # the record and its copy
            file.write_bytes(b"")
        await world.restart()
        world.api.failure = ApiError("away") if lost == "record" else None
        answer = await prepared(world)
        assert (answer == "") == (lost != "record"), lost
    assert "prepare_container a" not in backend.hooks[2:], backend.hooks
    await world.restart(boot_id="boot-2")
    assert await prepared(world) == ""
    assert backend.hooks[-1] == "prepare_container a"


@pytest.mark.parametrize("place", ["claims", "cdi"])
async def test_a_disk_that_is_full_after_the_hook_is_told_and_the_next_prepare_repeats_all(
    world: World, backend: Cards, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """No pod has run on the claim: its Prepare has failed."""
    write = files._write

    def refuse(descriptor: int, data: bytes) -> None:
        is_here = f"/{place}/" in os.readlink(f"/proc/self/fd/{descriptor}")
        if is_here and "prepare_container a" in backend.hooks:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor, data)

    world.api.put(claim(), [result("w0", "a")])
    with monkeypatch.context() as full:
        full.setattr(files, "_write", refuse)
        assert "No space left on device" in await prepared(world)
    assert await prepared(world) == ""
    assert backend.hooks == ["allocate a", "prepare_container a"] * 2
    assert world.spec(claim()) is not None


class Checked(Cards):
    """No other hook has a part in a Prepare."""

    unused_hooks = ("allocate", "released")


async def test_a_class_without_allocate_has_the_call_too(tmp_path: Path) -> None:
    backend = Checked()
    async with running(tmp_path, backend) as world:
        world.api.put(claim(), [result("w0", "a")])
        assert await prepared(world) == ""
        assert backend.hooks == ["prepare_container a"]


async def test_admin_access_has_none_because_a_pod_may_use_the_device(world: World, backend: Cards) -> None:
    world.api.put(claim(), [result("w0", "a", admin=True)])
    assert await prepared(world) == ""
    assert backend.hooks == ["allocate a"]


async def test_an_unprepare_waits_for_its_thread_before_released(world: World, backend: Cards) -> None:
    world.api.put(claim(), [result("w0", "a")])
    backend.ready.clear()
    assert "prepare_container() of Cards did not return within 1 s" in await prepared(world)
    assert await unprepared(world) == ""
    assert backend.hooks == ["allocate a", "prepare_container a"], "its thread may still change the device"
    backend.ready.set()
    await until(lambda: backend.hooks[-1] == "released a")
    assert backend.allocations[-1].state["tested"] == 1, "what a late hook notes was lost"


async def test_the_next_prepare_had_not_the_state_of_a_late_hook(world: World, backend: Cards) -> None:
    world.api.put(claim(), [result("w0", "a")])
    backend.ready.clear()
    assert "prepare_container() of Cards did not return within 1 s" in await prepared(world)
    again = asyncio.create_task(prepared(world))
    backend.ready.set()
    assert await again == ""
    assert backend.hooks == ["allocate a", "prepare_container a"] * 2
    assert [each.state["tested"] for each in backend.allocations[2:]] == [1, 2], "allocate, and then the hook again"


async def test_a_prepare_answers_before_the_kubelet_gives_up(
    world: World, backend: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its hooks do goes on, and the next Prepare joins in."""
    assert prepare.ANSWER_SECONDS < 45
    monkeypatch.setattr(prepare, "ANSWER_SECONDS", 0.05)
    world.api.put(claim(), [result("w0", "a")])
    backend.gate.clear()
    async with asyncio.timeout(60):  # on a busy machine the hook may begin later than the first answer
        said = ""
        while not said or said.startswith("it is not prepared after 0.05 s; "):
            said = await prepared(world)
    assert said == "allocate() has not returned after 0.05 s; the kubelet asks again"
    monkeypatch.undo()
    joined = asyncio.create_task(prepared(world))
    backend.gate.set()
    assert await joined == ""
    assert backend.hooks == ["allocate a", "prepare_container a"]


@attrs.frozen
class BusyError(kdp.AllocationError):
    """An exception that nobody can write to."""

    card: str

    @override
    def __str__(self) -> str:
        return f"card {self.card} is busy"


async def test_a_frozen_exception_of_a_vendor_was_an_internal_error(world: World, backend: Cards) -> None:
    world.api.put(claim(), [result("w0", "a")])
    backend.failure = BusyError("w0")
    assert await prepared(world) == "card w0 is busy"
