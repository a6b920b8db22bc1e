"""`Jobs`: what is going on for the claims of a driver, in this process. asyncio only; use it from one loop.

* What is begun for a claim goes on when the kubelet loses interest; it joins in when it asks again.
* An Unprepare ends a Prepare, and begins when nothing of it is left: the claim ends unprepared.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, final

import attrs

from .checkpoint import Use

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    _Work = Callable[[], Coroutine[None, None, "JobOutcome"]]


@final
@attrs.frozen(kw_only=True)
class JobOutcome:
    """What the kubelet is told of one claim.

    Attributes:
        devices: Its devices; none: it has none of this driver, or failed.
        error: Why it failed; "": it did not.
    """

    devices: tuple[Use, ...] = ()
    error: str = ""


class Jobs:
    """The Prepares and Unprepares that run: at most one of each for a claim.

    Attributes:
        is_closed: Whether no new one begins.
    """

    def __init__(self) -> None:
        self._preparing: dict[str, asyncio.Task[JobOutcome]] = {}
        self._undoing: dict[str, asyncio.Task[JobOutcome]] = {}
        self.is_closed = False

    def is_preparing(self, uid: str) -> bool:
        """Return whether a claim is being prepared."""
        return uid in self._preparing

    async def join(self, uid: str, work: _Work, *, undoes: bool) -> JobOutcome:
        """Wait for what is going on for a claim, or begin it; it goes on when the caller is cancelled.

        Args:
            uid: The claim.
            work: The Prepare or the Unprepare.
            undoes: Whether it is an Unprepare, which ends a Prepare first.
        """
        if undoes and uid in self._preparing:
            self._preparing[uid].cancel()
            await asyncio.wait({self._preparing[uid]})
        jobs = self._undoing if undoes else self._preparing
        job = jobs.get(uid)
        if job is None:
            if self.is_closed:
                return JobOutcome(error="the driver is stopping; the kubelet asks again")
            job = jobs[uid] = asyncio.create_task(work())
            job.add_done_callback(partial(_forget, jobs, uid))
        await asyncio.wait({job})
        if job.cancelled():
            why = "the driver is stopping" if self.is_closed else "the claim was unprepared meanwhile"
            return JobOutcome(error=f"{why}; the kubelet asks again")
        return job.result()

    async def close(self, seconds: float) -> None:
        """Let what is going on end, within so many seconds; then give it up. What was only started says so on disk."""
        self.is_closed = True
        jobs = {*self._preparing.values(), *self._undoing.values()}
        if jobs:
            _, left = await asyncio.wait(jobs, timeout=seconds)
            for job in left:
                job.cancel()
            if left:
                await asyncio.wait(left, timeout=1.0)


def _forget(jobs: dict[str, asyncio.Task[JobOutcome]], uid: str, job: asyncio.Task[JobOutcome]) -> None:
    if jobs.get(uid) is job:
        del jobs[uid]
