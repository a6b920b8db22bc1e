"""What blocks for the disk: it is over when its waiter goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import anyio
import anyio.lowlevel
import pytest

from kdp.concurrency import threads
from kdp.concurrency.threads import Worker, offload
from kdp_testkit.patience import PATIENCE


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


async def test_a_call_that_hangs_holds_no_other_one_up() -> None:
    goes_on = threading.Event()
    stuck = asyncio.create_task(offload(lambda: goes_on.wait(30)))
    with anyio.fail_after(PATIENCE):
        for number in range(3):
            assert await offload(lambda number=number: number) == number  # type: ignore[misc]
    assert not stuck.done()
    goes_on.set()
    assert await stuck


async def test_a_thread_ends_with_its_call() -> None:
    thread = await offload(threading.current_thread)
    thread.join(PATIENCE)
    assert not thread.is_alive()


async def test_what_no_thread_can_be_started_for_is_done_all_the_same(
    without_threads: Callable[[], AbstractContextManager[list[str]]],
) -> None:
    """As at a container's limit of processes: it ended the driver."""
    with without_threads():
        assert await offload(lambda: 7) == 7


async def test_what_a_call_raises_is_its_outcome_even_if_it_would_end_a_loop() -> None:
    def leave() -> None:
        raise SystemExit(3)

    worker = Worker("kdp-test")
    _, failure = await worker.submit(leave)
    assert isinstance(failure, SystemExit)
    assert await worker.submit(lambda: 7) == (7, None)
    worker.end()
    with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
        await threads.run(leave, name="kdp-test")


async def test_a_refused_thread_is_the_outcome_and_the_next_call_tries_again(
    without_threads: Callable[[], AbstractContextManager[list[str]]],
) -> None:
    worker = Worker("kdp-test")
    with without_threads():
        _, failure = await worker.submit(lambda: 7)
        assert str(failure) == "can't start new thread"
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await threads.run(lambda: 7, name="kdp-test")
    assert await worker.submit(lambda: 7) == (7, None)
    worker.end()


async def test_a_call_of_its_own_thread_is_left_alone_when_its_waiter_is_cancelled() -> None:
    goes_on, done = threading.Event(), threading.Event()

    def work() -> None:
        goes_on.wait(10)
        done.set()

    with anyio.move_on_after(0.05) as scope:
        await threads.run(work, name="kdp-test")
    assert scope.cancelled_caught
    assert not done.is_set()
    goes_on.set()
    async with asyncio.timeout(10):
        assert await asyncio.to_thread(done.wait, 10)
