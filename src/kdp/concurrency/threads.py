"""`offload`: what blocks for the disk, off the loop.

A thread costs as much to start as a small file costs to write, and a Prepare writes half a dozen of them, so that a thread
that is free waits a while for the next call. There are as many threads as there are calls at a time: one that hangs is
never free again, and holds nobody else up. They are daemons, so that it does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar, final

__all__ = ["offload"]

IDLE = 10.0
"""Seconds for which a free thread waits for its next call."""

_T = TypeVar("_T")
_Job = Callable[[], Callable[[], None]]
"""Does the work, and returns what tells the loop."""
_Jobs = queue.SimpleQueue[_Job]


@final
class _Threads:
    """The threads that are free, each known by the queue that it waits at."""

    def __init__(self) -> None:
        self._free: list[_Jobs] = []

    def do(self, job: _Job) -> None:
        jobs: _Jobs
        try:
            jobs = self._free.pop()  # the last one that became free, so that the others come to their end
        except IndexError:
            jobs = queue.SimpleQueue()
            try:
                threading.Thread(target=self._work, args=(jobs,), name="kdp-dra-disk", daemon=True).start()
            except RuntimeError:  # as at a container's limit of processes: slow is better than not at all
                job()()
                return
        jobs.put(job)

    def _work(self, jobs: _Jobs) -> None:
        while (job := self._next(jobs)) is not None:
            tell = job()
            del job  # an idle thread must not keep the last call's objects
            self._free.append(jobs)  # before the loop goes on, which may have the next call at once
            tell()
            del tell

    def _next(self, jobs: _Jobs) -> _Job | None:
        try:
            return jobs.get(timeout=IDLE)
        except queue.Empty:
            pass
        try:
            self._free.remove(jobs)
        except ValueError:  # somebody has just taken it
            return jobs.get()
        return None


_threads = _Threads()


async def offload(call: Callable[[], _T]) -> _T:
    """Do in a daemon thread what blocks for the disk, and wait until it is done, cancelled or not.

    What has begun is over when this returns: nothing is written behind the back of whoever comes next.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def finish(result: Any, failure: Exception | None) -> None:
        if failure is None:
            done.set_result(result)
        else:
            done.set_exception(failure)

    def job() -> Callable[[], None]:
        result: Any = None
        failure: Exception | None = None
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - it is the waiter's
            failure = error

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(finish, result, failure)

        return tell

    _threads.do(job)
    cancelled = False
    while not done.done():
        try:
            await asyncio.wait({done})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        done.exception()
        raise asyncio.CancelledError
    return done.result()
