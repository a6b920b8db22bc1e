"""Blocking calls in daemon threads, with their outcome handed to the event loop.

`Worker` is one thread for calls that must not overlap, such as those of one hook. `begin` and `run` give a call a
thread of its own. `offload` does that for work on the disk, which is over when it returns.

A call may hang for ever. Then its thread stays busy, no other call waits for it, and because all threads are daemons it
does not keep the process from ending. Thread pools cannot give that: they share threads between calls and are joined at
exit. If the system refuses a thread, as at a container's limit of processes, the outcome of the call is that error.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, final

if TYPE_CHECKING:
    from types import FrameType

_T = TypeVar("_T")

Outcome = tuple[_T, BaseException | None]
"""What a call returned and what it raised: a future could not carry each exception, and would let some end the loop."""

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Outcome[Any]]"]
_Jobs = queue.SimpleQueue[_Job | None]


@final
class Worker:
    """One daemon thread for calls that must not overlap. It starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: _Jobs | None = None
        self._thread = 0

    @property
    def is_started(self) -> bool:
        """Whether there is a thread now."""
        return self._jobs is not None

    def submit(self, call: Callable[[], _T]) -> asyncio.Future[Outcome[_T]]:
        """Run a call after those submitted before; cancelling the future leaves the call alone.

        If no thread can be started, the outcome is that `RuntimeError`, and the next call tries again.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Outcome[_T]] = loop.create_future()
        try:
            if self._jobs is None:
                self._jobs, self._thread = _started(self._name)
        except RuntimeError as error:
            done.set_result((None, error))  # type: ignore[arg-type]
        else:
            self._jobs.put((call, loop, done))
        return done

    def frame(self) -> FrameType | None:
        """Return the innermost frame of its thread; `None` if it has none."""
        return sys._current_frames().get(self._thread)  # pyright: ignore[reportPrivateUsage]

    def end(self) -> None:
        """Let the thread end when it is free; a stuck one stays behind as a daemon. A later call has a new one."""
        if self._jobs is not None:
            self._jobs.put(None)
        self._jobs = None


def value_of(outcome: Outcome[_T]) -> _T:
    """Return what a call returned, or raise what it raised.

    Raises:
        RuntimeError: It raised something that must not end a loop, such as `SystemExit`.
    """
    value, failure = outcome
    if failure is None:
        return value
    raise failure if isinstance(failure, Exception) else RuntimeError(f"{failure!r}") from failure


def begin(call: Callable[[], _T], *, name: str) -> asyncio.Future[Outcome[_T]]:
    """Run a call in a thread of its own, which ends with it."""
    worker = Worker(name)
    done = worker.submit(call)
    worker.end()
    return done


async def run(call: Callable[[], _T], *, name: str) -> _T:
    """Run a call in a thread of its own and return its value; if cancelled, leave the thread alone."""
    return value_of(await begin(call, name=name))


async def offload(call: Callable[[], _T]) -> _T:
    """Run what blocks for the disk in a thread, and wait until it is done, cancelled or not.

    What has begun is over when this returns: no later caller meets a write of an earlier one.
    """
    worker = Worker("kdp-disk")
    done = worker.submit(call)
    if not worker.is_started:
        return call()  # slow is better than not at all
    worker.end()
    cancelled = False
    while not done.done():
        try:
            await asyncio.wait({done})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return value_of(done.result())


def _started(name: str) -> tuple[_Jobs, int]:
    """Start a thread, and return the queue that it works off and its identifier.

    Raises:
        RuntimeError: The system refuses a thread.
    """
    jobs = _Jobs()
    thread = threading.Thread(target=_work, args=(jobs,), name=name, daemon=True)
    thread.start()
    assert thread.ident is not None  # it has started
    return jobs, thread.ident


def _work(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        call, loop, done = job
        result: Any = None
        failure: BaseException | None = None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - it is the caller's, also a vendor library's SystemExit
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_deliver, done, (result, failure))
        del job, call, loop, done, result, failure  # an idle thread must not keep the last call's objects


def _deliver(done: asyncio.Future[Outcome[Any]], outcome: Outcome[Any]) -> None:
    if not done.done():
        done.set_result(outcome)
