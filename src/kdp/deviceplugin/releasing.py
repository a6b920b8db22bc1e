"""`Releaser`: calls the hook ``released`` of each backend for the allocations that tracking found ended."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from ..errors import HookTimeoutError, KdpError, sentence
from ..model.backend import Allocation
from ..supervision.hooks import check_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from anyio.abc import TaskGroup

    from ..model.devices import Device
    from ..supervision.supervisor import Supervisor
    from .held import HeldDevices
    from .tracking.allocation_record import AllocationRecord
    from .tracking.tracker import Tracker

logger = logging.getLogger(__name__)


class Releaser:
    """Releases ended allocations, of each backend one after another: its hook takes one call at a time."""

    def __init__(self, tracker: Tracker, held: HeldDevices, *, judged: Callable[[], object]) -> None:
        self._tracker = tracker
        self._held = held
        self._judged = judged
        self._supervisors: dict[str, Supervisor] = {}
        self._ready: dict[Supervisor, dict[str, AllocationRecord]] = {}
        self._releasing: set[Supervisor] = set()
        self._is_stopping = False

    def attach(self, resource: str, supervisor: Supervisor) -> None:
        """Take the backend of a resource; it is kept also when the resource is not served any more."""
        self._supervisors[resource] = supervisor

    def release(self, records: Iterable[AllocationRecord], tasks: TaskGroup) -> None:
        """Release these allocations soon, in this task group."""
        for record in records:
            supervisor = self._supervisors[record.resource]
            self._ready.setdefault(supervisor, {})[record.uid] = record
            if supervisor not in self._releasing:
                self._releasing.add(supervisor)
                tasks.start_soon(self._release_all, supervisor)

    async def settle(self, seconds: float) -> None:
        """Begin no release any more, and give those that run a moment."""
        self._is_stopping = True
        await self._tracker.records.settle(seconds)

    async def _release_all(self, supervisor: Supervisor) -> None:
        ready = self._ready[supervisor]
        try:
            while ready and not self._is_stopping:
                record = ready.pop(next(iter(ready)))
                if self._tracker.records.begin_release(record):
                    await self._release(record, supervisor)
        finally:
            self._releasing.discard(supervisor)

    async def _release(self, record: AllocationRecord, supervisor: Supervisor) -> None:
        records = self._tracker.records
        try:
            if supervisor.hooks.overridden("released"):
                if supervisor.discovery.value.problem is not None:  # closed: no hook is called but `open`
                    records.postpone_release(record, has_failed=True)
                    return
                away = self._away(record)
                is_early = self._held.is_elsewhere(record) or not await records.may_release(record)
                if len(away) == len(record.ids) or is_early:
                    records.postpone_release(record, has_failed=False)
                    return
                if away:
                    records.divide(record, away)
                await self._call(record, supervisor)
        except KdpError as error:
            again = records.postpone_release(record, has_failed=True)
            ids = ", ".join(record.ids)
            logger.warning("%s: %s: %s; again in %.0f s", record.resource, ids, sentence(error), again)
            self._judged()
        except asyncio.CancelledError:
            records.cancel_release(record)
            raise
        else:
            await records.finish_release(record)
            self._judged()

    def _away(self, record: AllocationRecord) -> list[str]:
        """Return the devices that must be scrubbed and cannot be now: the hardware has none of them."""
        if not record.is_back:
            return []
        return [key[1] for key in record.keys if not self._tracker.is_there(*key) and not self._held.successors(*key)]

    def _devices(self, record: AllocationRecord) -> tuple[Device, ...]:
        """Return the devices of an allocation, or the devices that have their nodes now."""
        found: dict[str, Device] = {}
        for key in record.keys:
            successors = () if self._tracker.is_there(*key) else self._held.successors(*key)
            for device in successors or (self._tracker.device(*key),):
                found[device.id] = device
        return tuple(found.values())

    async def _call(self, record: AllocationRecord, supervisor: Supervisor) -> None:
        await self._tracker.records.until_stated(record.resource, record.ids)  # prepare_container may still be at it
        limit = supervisor.deadlines.released
        devices = self._devices(record)
        allocation = Allocation(
            resource=record.resource,
            devices=devices,
            deadline=time.monotonic() + limit,
            state=check_state(record.state),
            joined_env=supervisor.backend.joined_env,
            shared_with=self._tracker.records.shared_with(record.resource, record.ids, is_over=True),
        )
        try:
            await supervisor.call("released", allocation, deadline=limit, work=record.uid)
        except KdpError as error:
            if isinstance(error, HookTimeoutError):
                ids = ", ".join(record.ids)
                logger.warning("%s: %s: %s; no pod gets it until then", record.resource, ids, sentence(error))
                self._tracker.records.note_late(record)
                await supervisor.hooks.idle("released", deadline=None)  # its thread may still write to the state
            await self._tracker.records.keep_state_of(record, allocation.state)  # what is done need not be done again
            raise
