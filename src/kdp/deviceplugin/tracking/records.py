"""`AllocationRecords`: the allocations that are not released yet, while Allocate runs, in memory and on disk.

The servicer opens a record for each Allocate, releases close it. `allocations` decides; here are the clock, the
waiting, and the store. The records command nobody: who wants to know of a change reads ``changes``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import anyio

from ...concurrency.observable import Observable
from ...concurrency.threads import offload
from ...errors import AllocationError, InvalidValueError
from ...supervision.conditions import CLEANUP, UNSAVED, being_scrubbed
from ...supervision.hooks import check_state
from .allocation_record import AllocationRecord
from .store import AllocationOwner, KeptResource, is_abandoned, saved_beside, why_not_saved

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from ...model.backend import Allocation, DeviceBackend
    from ...model.conditions import Condition
    from ...model.devices import Device
    from ...model.quantities import Consumption
    from ...supervision.given import Given
    from .allocations import Allocations
    from .store import AllocationStore

logger = logging.getLogger(__name__)

_NOT_SAVED: Final = "its devices are scrubbed between two pods, and allocations cannot be saved"
"""Why a resource offers nothing: after a crash nobody would know which devices to scrub."""

ADOPT_PATIENCE = 5.0
"""Seconds that the first device list waits for the disk to say what earlier processes gave."""

NEIGHBOURS_AGAIN = 0.5
"""Seconds between two looks whether another process has ended, while a container waits for that."""

TELL_DELAY = 0.05
"""Seconds from an Allocate until ``changes`` changes, so that several Allocates cost one look at all records."""

RELEASE_SHARE = 0.8
"""Share of the shutdown's time for releases that run; saving has the remainder."""

CLOSE_LEAST = 0.1
"""Seconds that each file has to be written at the shutdown: a plugin that starts again must find it free."""


@final
class OpenAllocate:
    """An Allocate that runs; see `AllocationRecords.allocating`.

    Attributes:
        record: Its record.
        is_given: Whether the kubelet is told yes.
    """

    def __init__(self, records: AllocationRecords, record: AllocationRecord) -> None:
        self.record = record
        self.is_given = False
        self._records = records

    async def intend(self) -> None:
        """Save that a hook may leave a state, before it runs. It waits for the file, a second at most.

        A process that is killed in the hook releases the devices later, with an empty state.
        """
        await self._records.intend(self.record)

    async def give(self, allocation: Allocation, given: Mapping[str, Given]) -> None:
        """Keep what the kubelet is about to be told. A state of hooks is on the disk then, or a second has passed.

        Args:
            allocation: The allocation with its state.
            given: What the container gets of each device.

        Raises:
            AllocationError: The devices must be scrubbed later, and the disk does not take that.
        """
        self.is_given = True
        try:
            await self._records.keep(self.record, allocation, given)
        except AllocationError:
            self.is_given = False
            raise


class AllocationRecords:
    """Keeps the allocations of all resources of a process. Run `run` in a task group.

    Args:
        allocations: What is decided with.
        plugin_dir: The kubelet's plugin directory.
        state_dir: Where allocations are saved; None: nowhere.
        period: Seconds between two looks for what a process beside this one has left.
        boot_id: The boot of the node; "": unknown.

    Attributes:
        changes: Changes when the kubelet may have to be asked sooner.
        offers: Changes when other devices may have to be offered: one was given away, came back, or was released.
        late: Changes when a release has not ended by its deadline, and when it ends at last.
        taken_over: UIDs of the allocations that this process took over from others.
    """

    def __init__(
        self, allocations: Allocations, *, plugin_dir: Path, state_dir: Path | None, period: float, boot_id: str = ""
    ) -> None:
        self.changes: Observable[None] = Observable(None)
        self.offers: Observable[None] = Observable(None)
        self.late: Observable[tuple[AllocationRecord, ...]] = Observable(())
        self.taken_over: set[str] = set()
        self._allocations = allocations
        self._plugin_dir = plugin_dir
        self._state_dir = state_dir
        self._period = period
        self._boot_id = boot_id
        self._resources: dict[str, KeptResource] = {}
        self._running: dict[str, anyio.Event] = {}
        self._back_at: dict[str, float] = {}
        self._unwritable: str | None = None
        self._tasks: TaskGroup | None = None
        self._restated: dict[str, Mapping[str, Any]] = {}
        self._unstated: dict[tuple[str, tuple[str, ...]], anyio.Event] = {}
        self._waiting = 0
        self._telling: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Take over what dead processes have left, until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            self.adopt()
            await anyio.sleep_forever()

    def attach(self, resource: str, owner: AllocationOwner) -> None:
        """Take a resource; one that was known goes on where it was."""
        if owner.scrubs:
            self._allocations.scrub(resource)
        if owner.place is not None:
            self._allocations.share(resource, owner.place)
        known = self._resources.get(resource)
        if known is not None:
            known.owner = owner
            return
        known = self._resources[resource] = KeptResource(resource, owner, self._image)
        self._adopt_soon(known)

    @property
    def is_starting(self) -> bool:
        """Whether the start of a container waits for a list or for a scrub."""
        return self._waiting > 0

    @property
    def is_releasing(self) -> bool:
        """Whether a backend wants to know of the end of an allocation."""
        return any(resource.owner.wants_release for resource in self._resources.values())

    @property
    def is_counting(self) -> bool:
        """Whether a device list depends on the end of an allocation."""
        return any(resource.owner.has_counters for resource in self._resources.values())

    @property
    def problem(self) -> str | None:
        """Why allocations are not saved; None: they are, or there was no need."""
        problems = (each.store.problem for each in self._resources.values() if each.store is not None)
        return next((problem for problem in problems if problem is not None), None)

    def releasing(self, resource: str) -> int:
        """Return how many allocations have ended and are not released yet: those that run, wait, or have failed."""
        return sum(each.is_handed_out or each.failures > 0 for each in self._allocations.owed(resource))

    async def adopted(self, resource: str) -> None:
        """Wait until what earlier processes gave of a resource is known, or the disk has had its time."""
        with anyio.move_on_after(ADOPT_PATIENCE):
            await self._resources[resource].adopted.wait()

    def given(self, resource: str, device_id: str) -> Given | None:
        """Return what the pod that holds a device was given; None: no pod holds it, or nothing can be compared."""
        record = self._allocations.newest_of(resource, device_id)
        return None if record is None else record.given.get(device_id)

    @property
    def has_given(self) -> bool:
        """Whether a pod holds a device that can be compared with what the pod was given."""
        return any(record.given for record in self._allocations.owed())

    def holdings(self) -> list[tuple[AllocationRecord, str, Given]]:
        """Return the allocations that keep their devices from others, with the id and the things of each device.

        An allocation whose release has failed does so only if its devices must be scrubbed.
        """
        return [
            (record, device_id, given)
            for record in self._allocations.owed()
            if record.is_back or not record.failures
            for device_id, given in record.given.items()
            if self._allocations.newest_of(record.resource, device_id) is record
        ]

    def is_later(self, record: AllocationRecord, other: AllocationRecord) -> bool:
        """Return whether an allocation is later than another one."""
        return self._allocations.latest([other, record]) is record

    def held(self, resource: str) -> set[str]:
        """Return a resource's devices that allocations still have. Any thread may call it."""
        return {
            device_id
            for record in self._allocations.owed(resource)
            if not (record.is_handed_out or record.is_back or record.failures)
            for device_id in record.ids
        }

    async def beside(self) -> list[tuple[str, AllocationRecord]]:
        """Return the saved allocations of other processes, and of resources that have another name now.

        Each has the class that gave it; see `kdp.supervision.backend_validation.class_of`.
        """
        directory = self._state_dir
        if directory is None:
            return []
        own = frozenset[Path]().union(*(each.store.files for each in self._resources.values() if each.store))
        found = await offload(lambda: saved_beside(directory, self._plugin_dir, own))
        known = {record.uid for record in self._allocations.owed()} | self.taken_over
        return [(label, each) for label, each in found if each.uid not in known]

    def mark(self) -> int:
        """Return a number that changes when another process has made or removed its file. A stat(2), no more."""
        try:
            return 0 if self._state_dir is None else os.stat(self._state_dir).st_mtime_ns
        except OSError:
            return 0

    async def is_abandoned(self, resource: str) -> bool:
        """Return whether no process serves a resource that has saved allocations."""
        directory = self._state_dir
        return directory is not None and await offload(lambda: is_abandoned(directory, resource))

    def owes(self, resource: str) -> bool:
        """Return whether an allocation of a resource is not released yet."""
        return bool(self._allocations.owed(resource))

    async def settle(self, seconds: float) -> None:
        """Give the releases that run a moment, and save; after ``seconds``, log the devices that are not saved."""
        until = time.monotonic() + seconds
        self.save(self._resources)
        with anyio.move_on_after(seconds * RELEASE_SHARE):
            for running in list(self._running.values()):
                await running.wait()
        self.save(self._resources)
        async with anyio.create_task_group() as tasks:
            for resource in self._resources.values():
                if resource.store is not None:
                    tasks.start_soon(self._close, resource, resource.store, until)

    @staticmethod
    async def _close(resource: KeptResource, store: AllocationStore, until: float) -> None:
        behind = await store.close(max(CLOSE_LEAST, until - time.monotonic()))
        if behind:
            text = f"the process ends before the disk has the allocations of {', '.join(sorted(behind))}"
            why = store.problem or "the disk is slow"
            logger.error("%s: %s: %s", resource.name, text, why, extra={"resource": resource.name})

    @asynccontextmanager
    async def allocating(self, resource: str, ids: Sequence[str], *, until: float) -> AsyncGenerator[OpenAllocate]:
        """Return the context in which an Allocate runs; it keeps the Allocate apart from releases and lists.

        A release of one of its devices that has not begun waits until they are free again; one that runs is waited
        for until then at most.

        Yields:
            The record of the Allocate. Left without a call of its ``give``, the Allocate has failed.

        Raises:
            AllocationError: The release of one of the devices takes too long.
        """
        known = self._resources[resource]
        if not known.owner.scrubs:
            await self._until_free(resource, ids, until)
        allocate = OpenAllocate(self, self._record(known, ids))
        if known.owner.scrubs:
            self._allocations.take_back(resource, ids, allocate.record.at)  # the container's start waits, and not this
        self._allocations.begin(resource, ids, time.monotonic())
        try:
            yield allocate
        finally:
            self._allocations.end(resource, ids, time.monotonic(), given=allocate.is_given)
            if known.intended.pop(allocate.record.uid, None) is not None:
                self._drop(known, allocate.record)
            for record in self._allocations.of(resource, ids) if allocate.is_given else ():
                self._put(known, record)  # no list has named its devices since
            if self._telling is None:
                self._telling = asyncio.get_running_loop().call_later(TELL_DELAY, self._tell)
            self.offers.set(None)

    def _tell(self) -> None:
        self._telling = None
        self._changed()

    def _record(self, resource: KeptResource, ids: Collection[str]) -> AllocationRecord:
        """Return the record of an Allocate that begins now."""
        return AllocationRecord(
            uid=os.urandom(16).hex(),
            resource=resource.name,
            ids=tuple(sorted(ids)),
            state={},
            is_started=not resource.owner.scrubs,
            at=(self._boot_id, time.clock_gettime(time.CLOCK_BOOTTIME)),
        )

    async def intend(self, record: AllocationRecord) -> None:
        """Have a record in the file before the hook runs; see `OpenAllocate.intend`."""
        resource = self._resources[record.resource]
        store = resource.store_in(self._state_dir, self._plugin_dir)
        if store is not None and resource.owner.leaves_state:
            resource.intended[record.uid] = record
            store.put(record)
            await store.saved(synced=False)

    async def _until_free(self, resource: str, ids: Sequence[str], until: float) -> None:
        """Take back what was handed out and has not begun, and wait for a release of these devices that runs."""
        while True:
            for record in self._allocations.of(resource, ids):
                if record.is_handed_out and record.uid not in self._running:
                    self._allocations.withdraw(record)
            use = self._allocations.under_release(resource, ids)
            if use is None:
                return
            with anyio.move_on_after(until - time.monotonic()):
                await self._running[use.uid].wait()
                continue
            raise AllocationError(f"{resource}: device {use.ids[0]} is still being cleaned up after its previous pod")

    async def keep(self, record: AllocationRecord, allocation: Allocation, given: Mapping[str, Given]) -> None:
        """Keep an allocation until it is released, if anybody is interested; see `OpenAllocate.give`."""
        resource = self._resources[allocation.resource]
        owner = resource.owner
        if not (owner.is_asked_for or allocation.state or given):
            return
        record.state = check_state(allocation.state)
        record.given = given
        record.consumes = {device.id: device.consumes for device in allocation if device.consumes}
        record.numa_nodes = {device.id: device.numa_nodes for device in allocation if device.numa_nodes}
        resource.devices.update({device.id: device for device in allocation})
        self._add(resource, record)
        if not owner.wants_release:  # where nobody says what pods hold, these would pile up
            for each in self._allocations.replaced(record):
                self._allocations.released(each)
                self._drop(resource, each)
        if owner.scrubs:
            self.save([resource.name])  # also the allocations that have come back, because the kubelet gives this one
            if not await self._saved(resource):
                record.is_started = record.is_back = (
                    True  # no pod gets the devices, so their release need not wait for a list
                )
                self._put(resource, record)
                raise AllocationError(f"{resource.name}: {self._why_unsaved(resource.name) or _NOT_SAVED}")
        if record.state:  # it exists once: the kubelet can say all else again
            await self._saved(resource)

    def _add(self, resource: KeptResource, record: AllocationRecord) -> None:
        resource.intended.pop(record.uid, None)
        dropped = self._allocations.add(record, time.monotonic())
        if dropped is not record:
            self._put(resource, record)
        if dropped is not None:
            self._drop(resource, dropped)

    def consumption(self, backend: DeviceBackend) -> dict[str, Consumption]:
        """Return what the allocated devices of a backend take of its counters, by the device's id, not a replica's."""
        return {
            self._allocations.place(resource.name, device_id): consumes
            for resource in self._resources.values()
            if resource.owner.backend is backend
            for record in self._allocations.owed(resource.name)
            for device_id, consumes in record.consumes.items()
        }

    def unsaved(self, resource: str) -> Condition | None:
        """Return why no device of a resource is offered that is scrubbed between two pods; `None` if each is."""
        why = self._why_unsaved(resource)
        return None if why is None else UNSAVED.because(why, time.monotonic())

    def _why_unsaved(self, resource: str) -> str | None:
        store = self._resources[resource].store
        if self._state_dir is None:
            return f"{_NOT_SAVED}; give a state directory, as --state-dir /var/lib/kdp"
        problem = (None if store is None else store.problem) or self._unwritable
        return None if problem is None else f"{_NOT_SAVED}: {problem}"

    async def look_at_state(self) -> None:
        """Look whether the state directory can be written to; what `unsaved` says may change."""
        directory = self._state_dir
        if directory is not None:
            why = await offload(lambda: why_not_saved(directory))
            problem = None if why is None else f"{directory} cannot be written: {why}"
            problem = problem or self.problem
            if problem != self._unwritable:
                self._unwritable = problem
                self.offers.set(None)

    def presume(self, resource: str, ids: Iterable[str]) -> None:
        """Have all these devices scrubbed if saved allocations were damaged: any pod may have had any of them."""
        store = self._resources[resource].store
        if store is None or not store.has_lost:
            return
        store.has_lost = False
        unknown = {self._allocations.place(resource, each): each for each in ids}
        lost = [each for each in unknown.values() if not self._allocations.is_owed(resource, each)]
        self._adopt_presumed(resource, [self._presumed(resource, each, is_back=True) for each in lost])

    def fill(self, resource: str, ids: Iterable[str], given: Mapping[str, Given]) -> None:
        """Take devices for allocated that pods hold and no saved allocation has: a crash forgot it, or a lost file.

        Args:
            resource: The resource.
            ids: The devices.
            given: The things that their pods can touch, as far as they are known.
        """
        records: list[AllocationRecord] = []
        for device_id in ids:
            if self._resources[resource].owner.is_asked_for or device_id in given:
                record = self._presumed(resource, device_id, is_back=False)
                record.given = {device_id: given[device_id]} if device_id in given else {}
                records.append(record)
        if records:
            names = ", ".join(each.ids[0] for each in records)
            text = f"pods hold {names}, and no saved allocation has them; kdp releases them when their pods have ended"
            logger.warning("%s: %s", resource, text, extra={"resource": resource})
        self._adopt_presumed(resource, records)

    @staticmethod
    def _presumed(resource: str, device_id: str, *, is_back: bool) -> AllocationRecord:
        return AllocationRecord(
            uid=os.urandom(16).hex(), resource=resource, ids=(device_id,), state={}, is_seen=True, is_back=is_back
        )

    def _adopt_presumed(self, resource: str, records: Sequence[AllocationRecord]) -> None:
        if records:
            self._allocations.adopt(records, time.monotonic())
            self.save([resource])
            self.changes.set(None)
            self._resources[resource].owner.adopted()

    def unknown(self, held: Iterable[tuple[str, str]], asked_at: float) -> dict[str, list[str]]:
        """Return the devices that pods hold without an allocation, by resource, once after each take-over.

        Args:
            held: The resource and id of each device that a complete List has named.
            asked_at: The time of that List.
        """
        found: dict[str, list[str]] = {}
        wanted = {
            name
            for name, each in self._resources.items()
            if each.is_unfilled and each.adopted.is_set() and not each.has_neighbours
        }
        for resource, device_id in held:
            if resource in wanted and self._allocations.is_unexplained(resource, device_id, asked_at):
                found.setdefault(resource, []).append(device_id)
        for name in wanted:
            self._resources[name].is_unfilled = False
        return found

    def unlisted(self, resource: str, listed: Collection[str]) -> dict[str, Sequence[int]]:
        """Return the allocated devices that are not listed, with their NUMA nodes: pods may hold them."""
        return {
            device_id: record.numa_nodes.get(device_id, ())
            for record in self._allocations.owed(resource)
            if not record.failures
            for device_id in record.ids
            if device_id not in listed
        }

    async def scrubbed(self, resource: str, ids: Sequence[str], *, until: float) -> None:
        """Wait until what earlier containers left on these devices is scrubbed.

        Raises:
            AllocationError: It has not been scrubbed until then.
        """
        known = self._resources[resource]
        while True:
            others = await self._neighbours(known)
            use = self._allocations.waits_for(resource, ids, others)
            if use is None:
                return
            version = self.offers.version
            self._waiting += 1
            try:
                left = until - time.monotonic()
                with anyio.move_on_after(min(left, NEIGHBOURS_AGAIN) if others else left):
                    await self.offers.after(version)
                    continue
            finally:
                self._waiting -= 1
            if time.monotonic() < until:
                continue
            places = {self._allocations.place(resource, each) for each in use.ids}
            names = ", ".join(sorted({each for each in ids if self._allocations.place(resource, each) in places}))
            if use in others:
                raise AllocationError(
                    f"{resource}: device {names} may still hold what another pod left: the process of this plugin that "
                    "gave it away is still running"
                )
            if use.is_back:
                raise AllocationError(f"{resource}: device {names} is still being scrubbed, {self._since(use)}")
            raise AllocationError(
                f"{resource}: device {names} may still hold what another pod left: the kubelet has not said whether "
                f"the pod with {', '.join(use.ids)} has ended"
            )

    def doubt(self, resource: str) -> None:
        """Note that a stream has opened or ended; see `Allocations.doubt`."""
        self._allocations.doubt(resource, time.monotonic())

    async def _neighbours(self, resource: KeptResource) -> list[AllocationRecord]:
        """Return what other processes of this plugin have not released, after taking over what ended ones left.

        In an update there are two for a while, and the one knows nothing of what the other gave.
        """
        store = resource.store
        if store is None or not (store.has_neighbours or self.mark() != resource.mark):
            return []
        await self._adopt_once(resource, store)
        return await store.neighbours() if store.has_neighbours else []

    async def may_release(self, record: AllocationRecord) -> bool:
        """Return whether no other process of this plugin has the devices, too, so that they can be cleaned up."""
        others = await self._neighbours(self._resources[record.resource])
        return not self._allocations.waits_for_process(record, others)

    async def start(self, resource: str, ids: Sequence[str]) -> None:
        """Note that a container with exactly these devices starts now: what it leaves must be scrubbed.

        Raises:
            AllocationError: That cannot be saved, and after a crash nobody would know.
        """
        record = self._allocations.newest(resource, ids)
        if record is not None and not record.is_started:
            record.is_started = True
            known = self._resources[resource]
            self._put(known, record)
            if not await self._saved(known):
                record.is_started = False
                self._put(known, record)
                raise AllocationError(f"{resource}: {self._why_unsaved(resource) or _NOT_SAVED}")

    def withheld(self, resource: str, ids: Iterable[str]) -> dict[str, Condition]:
        """Return the condition of each of these devices that came back and needs a scrub."""
        withheld = self._allocations.withheld(resource, ids)
        return {device_id: being_scrubbed(self._since(use), self._back(use)) for device_id, use in withheld.items()}

    def unreleased(self, resource: str) -> dict[str, Condition]:
        """Return the condition of each device with a late release."""
        return {
            device_id: CLEANUP.because(
                f"still being cleaned up after its last pod, {self._since(record)}", self._back(record)
            )
            for record in self.late.value
            if record.resource == resource
            for device_id in record.ids
        }

    def shared_with(self, resource: str, ids: Collection[str], *, is_over: bool = False) -> dict[str, tuple[str, ...]]:
        """Return which other replicas of the same devices are allocated; see `Allocations.others`."""
        return self._allocations.others(resource, ids, is_over=is_over)

    def _back(self, use: AllocationRecord) -> float:
        """Return the time at which kdp first noticed the end of an allocation."""
        return self._back_at.setdefault(use.uid, time.monotonic())

    def _since(self, use: AllocationRecord) -> str:
        seconds = time.monotonic() - self._back(use)
        since = time.strftime("since %H:%M:%S", time.localtime(time.time() - seconds))
        return f"{since}; released() failed {use.failures} times" if use.failures else since

    async def newest(self, resource: str, ids: Sequence[str]) -> AllocationRecord | None:
        """Return the newest allocation of exactly these devices, or `None`.

        During an update another process of this plugin may have given the devices. Then its file has the allocation,
        unless the disk did not take it. `None` replaces an allocation that an earlier pod had.
        """
        wanted = tuple(sorted(set(ids)))
        found = [each for each in await self._neighbours(self._resources[resource]) if each.ids == wanted]
        for record in found:
            record.state = self._restated.get(record.uid, record.state)
        own = self._allocations.newest(resource, ids)  # last, because the await may have taken it over
        return self._allocations.latest([*found, *([] if own is None or own.is_superseded else [own])])

    async def keep_state_of(self, record: AllocationRecord, state: Mapping[str, Any]) -> None:
        """Take over the state that a release has left which failed."""
        state = check_state(state)
        if state != record.state:
            self._allocations.restate(record, state)
            known = self._resources[record.resource]
            self._put(known, record)
            await self._saved(known)

    async def keep_state(self, record: AllocationRecord | None, allocation: Allocation) -> None:
        """Take over the state that a later hook has changed.

        Args:
            record: The allocation that the hook was called for. Meanwhile its devices may have got another one.
            allocation: The allocation as the hook left it.
        """
        if record is not None:
            uses = self._allocations.of(record.resource, record.ids)
            if (own := next((use for use in uses if use.uid == record.uid), None)) is not None:
                await self.keep_state_of(own, allocation.state)
            elif self._resources[record.resource].has_neighbours:
                self._restated[record.uid] = check_state(allocation.state)  # until its process has ended
        elif check_state(allocation.state):
            await self.keep(self._record(self._resources[allocation.resource], allocation.ids), allocation, {})

    def keep_state_late(
        self, record: AllocationRecord | None, allocation: Allocation, returned: Callable[[], Awaitable[None]]
    ) -> None:
        """Take over the state of a hook that has missed its deadline, once the hook has returned.

        Args:
            record: See `keep_state`.
            allocation: The allocation, to which the hook's thread may still write.
            returned: Waits until the hook has returned.
        """
        key = allocation.resource, tuple(sorted(allocation.ids))

        async def keep() -> None:
            try:
                await returned()
                with contextlib.suppress(InvalidValueError):  # the vendor's mistake: the state of before stays
                    await self.keep_state(record, allocation)
            finally:
                self._unstated.pop(key).set()

        if self._tasks is not None and key not in self._unstated:
            self._unstated[key] = anyio.Event()
            self._tasks.start_soon(keep)

    async def until_stated(self, resource: str, ids: Sequence[str]) -> None:
        """Wait until no late hook can change the state of an allocation of these devices any more."""
        if (stated := self._unstated.get((resource, tuple(sorted(ids))))) is not None:
            await stated.wait()

    def device(self, resource: str, device_id: str) -> Device | None:
        """Return a device as it was at Allocate; None: this process has not allocated it."""
        return self._resources[resource].devices.get(device_id)

    def begin_release(self, record: AllocationRecord) -> bool:
        """Note that a release begins; `finish_release` must follow. False: its devices are in use again."""
        if not record.is_handed_out or record.uid in self._running:
            return False
        self._running[record.uid] = anyio.Event()
        return True

    async def finish_release(self, record: AllocationRecord) -> None:
        """Forget an allocation: the backend has cleaned up after it."""
        try:
            self._allocations.released(record)
            self._back_at.pop(record.uid, None)
            resource = self._resources[record.resource]
            for device_id in record.ids:
                if not self._allocations.is_owed(record.resource, device_id):
                    resource.devices.pop(device_id, None)
            self._drop(resource, record)
            for each in self._allocations.of(record.resource, record.ids):
                self._put(resource, each)  # it may be the newest of a device now
            await self._saved(resource)
        finally:
            self._end_release(record)
            self.offers.set(None)

    def divide(self, record: AllocationRecord, ids: Collection[str]) -> None:
        """Have the devices of an allocation that are away released later, and the others now.

        Args:
            record: The allocation, whose release has begun.
            ids: The devices that are away; not all of them.
        """
        part = self._allocations.split(record, os.urandom(16).hex(), ids)
        self._allocations.postpone(part, time.monotonic())
        self._back_at[part.uid] = self._back(record)
        self.save([record.resource])

    def postpone_release(self, record: AllocationRecord, *, has_failed: bool) -> float:
        """Have an allocation handed out again in the seconds that are returned: it has failed, or a device lacks."""
        now = time.monotonic()
        (self._allocations.failed if has_failed else self._allocations.postpone)(record, now)
        self._end_release(record)
        self._changed()
        return record.retry_at - now

    def cancel_release(self, record: AllocationRecord) -> None:
        """Have an allocation handed out again: its release was broken off."""
        self._allocations.withdraw(record)
        self._end_release(record)

    def note_late(self, record: AllocationRecord) -> None:
        """Note that a release has not ended by its deadline: its devices are not offered until it has."""
        self.late.set((*self.late.value, record))
        self.offers.set(None)

    def _end_release(self, record: AllocationRecord) -> None:
        self._running.pop(record.uid).set()
        if record in self.late.value:
            self.late.set(tuple(each for each in self.late.value if each is not record))
            self.offers.set(None)

    def _changed(self) -> None:
        if self._allocations.is_waiting:  # most Allocates change nothing that would be looked at sooner
            self.changes.set(None)

    def save(self, resources: Iterable[str]) -> None:
        """Save the allocations of these resources soon."""
        for resource in [self._resources[name] for name in resources]:
            owed = self._allocations.owed(resource.name)
            store = resource.store_in(self._state_dir, self._plugin_dir) if owed else resource.store
            if store is not None:
                store.match([*owed, *resource.intended.values()])

    def look(self) -> None:
        """Have files that somebody has removed written again."""
        for resource in self._resources.values():
            if resource.store is not None:
                resource.store.look()

    def adopt(self) -> None:
        """Take over soon what processes have left that have ended since."""
        for resource in self._resources.values():
            self._adopt_soon(resource)

    def _image(self, record: AllocationRecord) -> Mapping[str, Any]:
        """Return an allocation as it is to be saved."""
        if record.uid not in self._resources[record.resource].intended:
            record.suspects = self._allocations.suspects(record)
            record.is_seen = self._allocations.is_seen(record)
        return record.as_json()

    def _put(self, resource: KeptResource, record: AllocationRecord) -> None:
        store = resource.store_in(self._state_dir, self._plugin_dir)
        if store is not None:
            store.put(record)

    @staticmethod
    def _drop(resource: KeptResource, record: AllocationRecord) -> None:
        if resource.store is not None:
            resource.store.drop(record.uid)

    @staticmethod
    async def _saved(resource: KeptResource) -> bool:
        """Return whether all allocations of a resource are on the disk, after a second at most."""
        return resource.store is not None and await resource.store.saved()

    def _adopt_soon(self, resource: KeptResource) -> None:
        if self._tasks is not None and not resource.is_adopting:
            resource.is_adopting = True
            self._tasks.start_soon(self._adopt, resource)

    async def _adopt(self, resource: KeptResource) -> None:
        """Take over what dead processes have left; beside one that lives, as in an update, again until it has ended."""
        try:
            while (store := resource.store_in(self._state_dir, self._plugin_dir)) is not None:
                await self._adopt_once(resource, store)
                resource.adopted.set()
                if not store.has_neighbours:
                    return
                await anyio.sleep(self._period)
        finally:
            resource.adopted.set()
            resource.is_adopting = False

    async def _adopt_once(self, resource: KeptResource, store: AllocationStore) -> None:
        resource.mark = self.mark()  # first: a file that comes meanwhile is looked at next time
        found = await store.adopt()
        known = {record.uid for record in self._allocations.owed(resource.name)}
        records = [each for each in found if each.uid not in known and each.ids]
        for record in records:
            record.state = self._restated.pop(record.uid, record.state)
        self._allocations.adopt(records, time.monotonic())
        self.taken_over.update(each.uid for each in records)
        self.save([resource.name])
        store.take()
        if records:
            resource.is_unfilled = True
            self.offers.set(None)
            extra = {"resource": resource.name}
            logger.info("%s: allocations taken over: %d", resource.name, len(records), extra=extra)
            resource.owner.adopted()
            self._changed()
