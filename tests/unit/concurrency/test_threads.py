"""What blocks for the disk: it is over when its waiter goes on, and its threads are used again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import anyio
import anyio.lowlevel
import pytest

from kdp.concurrency import threads
from kdp.concurrency.threads import offload
from kdp.errors import CheckpointError


async def test_what_has_begun_on_the_disk_is_over_when_a_cancelled_task_ends() -> None:
    goes_on, done = threading.Event(), threading.Event()

    def write() -> None:
        goes_on.wait(10)
        done.set()

    task = asyncio.create_task(offload(write))
    await anyio.lowlevel.checkpoint()
    task.cancel()
    await anyio.sleep(0.05)
    assert not task.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()


async def test_an_error_on_the_disk_is_the_waiters() -> None:
    def fail() -> None:
        raise CheckpointError("the disk is gone")

    with pytest.raises(CheckpointError, match="the disk is gone"):
        await offload(fail)


async def test_calls_one_after_another_share_a_thread() -> None:
    assert len({await offload(threading.get_ident) for _ in range(20)}) == 1


async def test_a_call_that_hangs_holds_no_other_one_up() -> None:
    goes_on = threading.Event()
    stuck = asyncio.create_task(offload(lambda: goes_on.wait(30)))
    with anyio.fail_after(10):
        for number in range(3):
            assert await offload(lambda number=number: number) == number  # type: ignore[misc]
    assert not stuck.done()
    goes_on.set()
    assert await stuck


async def test_a_thread_that_nobody_needs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE", 0.0)
    monkeypatch.setattr(threads, "_threads", threads._Threads())
    thread = await offload(threading.current_thread)
    thread.join(10)
    assert not thread.is_alive()
    assert await offload(threading.current_thread) is not thread


async def test_whoever_takes_a_thread_as_it_ends_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE", 0.0)
    monkeypatch.setattr(threads, "_threads", threads._Threads())
    with anyio.fail_after(30):
        for number in range(500):
            assert await offload(lambda number=number: number) == number  # type: ignore[misc]


async def test_what_no_thread_can_be_started_for_is_done_all_the_same(
    monkeypatch: pytest.MonkeyPatch, without_threads: Callable[[], AbstractContextManager[list[str]]]
) -> None:
    """As at a container's limit of processes: it ended the driver."""
    monkeypatch.setattr(threads, "_threads", threads._Threads())
    with without_threads():
        assert await offload(lambda: 7) == 7
