"""`OwedReleases`: repeats ``released`` for claims that are over, until it succeeds. asyncio only.

Unprepare answers after a second although the backend is not ready, or ``released`` hangs or fails. The claim's record
then says that the release is owed (`ClaimLifecycle`). Each process of a driver takes over the releases that it finds on
the disk, and the claim's lock lets one process at a time call the hook.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final, final

import attrs

from ...concurrency.backoff import Backoff
from ...errors import CdiWriteError, CheckpointError, ClaimError, KdpError, sentence
from ...supervision.conditions import SCRUB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...concurrency.observable import Observable
    from ...model.conditions import Condition  # noqa: TC004 - attrs reads no annotation
    from .checkpoint import Record  # noqa: TC004 - attrs reads no annotation
    from .disk import Locks
    from .lifecycle import ClaimLifecycle

logger = logging.getLogger(__name__)

UNPREPARE_SECONDS: Final = 1.0
"""Seconds for which Unprepare waits for ``released``; a pod's end never waits for hardware."""

FIRST_PAUSE: Final = 1.0
"""Seconds until the first repetition."""

MOST_PAUSE: Final = 60.0
"""Largest pause in seconds between two calls of ``released``."""

MOST_PAUSE_OF_SCRUB: Final = 12.0
"""As `MOST_PAUSE`, if no device is offered before its scrub."""


@final
@attrs.define(kw_only=True, eq=False)
class _Owed:
    """One claim's release.

    Attributes:
        record: The claim's record as it was found.
        began: When this process took the release over, on `time.monotonic`'s clock.
        asked: Set to try again immediately.
        tried: Set when a first attempt has ended.
        is_trying: Whether an attempt runs.
        why: Why the last attempt did not succeed.
        condition: The condition of the claim's devices; `None` if the release has not been late yet.
        has_failed: Whether an attempt has failed.
        task: Repeats it.
    """

    record: Record
    began: float
    asked: asyncio.Event = attrs.field(factory=asyncio.Event)
    tried: asyncio.Event = attrs.field(factory=asyncio.Event)
    is_trying: bool = True
    why: str = ""
    condition: Condition | None = None
    has_failed: bool = False
    task: asyncio.Task[None] = attrs.field(init=False)

    @property
    def name(self) -> str:
        """The claim's name."""
        return f"{self.record.claim.namespace}/{self.record.claim.name}"

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the claim's devices that are not released."""
        return tuple(dict.fromkeys(use.device_id for use in self.record.owed)) or self.record.held.devices


@final
class OwedReleases:
    """The releases that one driver owes.

    Args:
        driver: The driver's name, for the log.
        life: Releases a claim.
        locks: The claims' locks.
        scrubs: Whether the release policy is ``scrub``.
        doubts: Set when the disk has failed.
    """

    def __init__(
        self, driver: str, life: ClaimLifecycle, locks: Locks, *, scrubs: bool, doubts: Observable[None]
    ) -> None:
        self._driver = driver
        self._life = life
        self._locks = locks
        self._most_pause = MOST_PAUSE_OF_SCRUB if scrubs else MOST_PAUSE
        self._doubts = doubts
        self._owed: dict[str, _Owed] = {}
        self._is_closed = False

    def begin(self, record: Record) -> _Owed:
        """Release a claim in the background, unless that goes on already.

        Args:
            record: The claim's record, which says that its release is owed.

        Raises:
            ClaimError: The driver is stopping.
        """
        if self._is_closed:
            raise ClaimError("the driver is stopping; the kubelet asks again")
        uid = record.claim.uid
        owed = self._owed.get(uid)
        if owed is None:
            owed = self._owed[uid] = _Owed(record=record, began=time.monotonic())
            owed.task = asyncio.create_task(self._repeat(owed))
        return owed

    async def settle(self, record: Record) -> None:
        """Begin a claim's release, and give its first attempt `UNPREPARE_SECONDS`.

        Raises:
            ClaimError: The driver is stopping.
        """
        owed = self.begin(record)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UNPREPARE_SECONDS):
                await owed.tried.wait()

    async def wait(self, records: Iterable[Record], until: float) -> None:
        """Try the releases of claims immediately, and wait for them.

        Args:
            records: Records that say that a release is owed.
            until: When to give up, on `time.monotonic`'s clock.

        Raises:
            ClaimError: A release is still owed then, or the driver is stopping; a sentence for a pod's author.
        """
        waiting = [self.begin(record) for record in records]
        for owed in waiting:
            owed.asked.set()
        await asyncio.wait({owed.task for owed in waiting}, timeout=max(0.0, until - time.monotonic()))
        for owed in waiting:
            if not owed.task.done():
                devices = f"device{'s' * (len(owed.ids) > 1)} {', '.join(owed.ids)}"
                why = owed.why or self._hanging(owed)
                raise ClaimError(
                    f"{devices}: not released yet after the last claim {owed.name}: {why}; the kubelet asks again"
                )

    def conditions(self, known: Iterable[Record]) -> dict[str, Condition]:
        """Return the condition of each device that is withheld for a late release, by device id. Does not block.

        Args:
            known: The records of all claims. A device of which another claim has a share is not withheld.
        """
        late = {uid: owed.condition for uid, owed in self._owed.items() if owed.condition is not None}
        if not late:
            return {}
        uses = [(record, use) for record in known for use in record.owed if not use.is_admin]
        in_use = {use.device_id for record, use in uses if not record.is_over}
        return {
            use.device_id: late[record.claim.uid]
            for record, use in uses
            if record.claim.uid in late and use.device_id not in in_use
        }

    def close(self) -> set[asyncio.Task[None]]:
        """Begin no attempt any more; return the tasks, of which those with a running attempt go on."""
        self._is_closed = True
        for owed in self._owed.values():
            if not owed.is_trying:
                owed.task.cancel()
        return {owed.task for owed in self._owed.values()}

    async def _repeat(self, owed: _Owed) -> None:
        """Try a release until it succeeds, or the driver stops."""
        backoff = Backoff(first=FIRST_PAUSE, most=self._most_pause)
        loop = asyncio.get_running_loop()
        late = loop.call_later(UNPREPARE_SECONDS, lambda: self._tell_runs(owed))
        try:
            while (why := await self._failure(owed)) is not None and not self._is_closed:
                late.cancel()
                self._tell_failed(owed, why)
                owed.tried.set()
                owed.is_trying = False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(backoff.next()):
                        await owed.asked.wait()
                    backoff.reset()
                owed.asked.clear()
                owed.is_trying = True
        finally:
            late.cancel()
            owed.tried.set()
            del self._owed[owed.record.claim.uid]
        if owed.condition is not None and why is None:
            self._life.hooks.judge_again()
            logger.info(
                "%s: claim %s (%s): the release of %s ended after %.0f s",
                *(self._driver, owed.name, owed.record.claim.uid, ", ".join(owed.ids)),
                time.monotonic() - owed.began,
                extra={"driver": self._driver},
            )

    async def _failure(self, owed: _Owed) -> str | None:
        """Try a release; return why it failed, or `None` if it succeeded."""
        claim = owed.record.claim
        try:
            async with self._locks.claim(claim.uid):
                await self._life.release(claim)
        except KdpError as error:
            if isinstance(error, (CdiWriteError, CheckpointError)):
                self._doubts.set(None)
            return sentence(error)
        except Exception as error:
            logger.exception("%s: internal error with claim %s", self._driver, owed.name)
            return sentence(error)
        return None

    def _withhold(self, owed: _Owed, why: str) -> None:
        """Note why a release is late; the first time, withhold the devices."""
        owed.why = why
        if owed.condition is not None:
            return
        at = time.strftime("%H:%M:%S", time.localtime(owed.record.over_since))
        owed.condition = SCRUB.because(f"waiting since {at} for released() after claim {owed.name}", owed.began)
        self._life.hooks.judge_again()

    def _tell_runs(self, owed: _Owed) -> None:
        """Withhold the devices of a release whose hook still runs, which it may for its whole deadline."""
        self._withhold(owed, self._hanging(owed))
        logger.info(
            "%s: claim %s (%s) ended; released() still runs for %s, and kdp withholds the devices meanwhile",
            *(self._driver, owed.name, owed.record.claim.uid, ", ".join(owed.ids)),
            extra={"driver": self._driver},
        )

    def _tell_failed(self, owed: _Owed, why: str) -> None:
        """Withhold the devices of a release that has failed; log the first failure."""
        self._withhold(owed, why)
        if owed.has_failed:
            return
        owed.has_failed = True
        text = "kdp repeats it, and withholds the devices until it succeeds"
        logger.warning(
            "%s: claim %s (%s) ended, but released() has not succeeded for %s: %s; %s",
            *(self._driver, owed.name, owed.record.claim.uid, ", ".join(owed.ids), why, text),
            extra={"driver": self._driver, "reason": why},
        )

    def _hanging(self, owed: _Owed) -> str:
        """Return which hook has not returned."""
        return f"{self._life.hooks.running(owed.record.claim) or 'released'}() has not returned"
