"""Prepare and Unprepare: what the kubelet asks for of claims, without gRPC.

Of each claim, one thing at a time, whoever asks and in whichever process::

    Prepare    record there and complete, of this boot, of this allocation?  ── yes ─► spec there again, same answer
               │ no
               ▼
    claim from the API ─► plan ─► "started" saved ─► allocate, part by part ─► CDI spec ─► "complete" saved ─► answer
                               (neither of these two where there is no hook allocate and no metadata file)

    Unprepare  record there? ── no ─► done          "started" saved ─► released, part by part ─► spec gone ─► record
    gone

* What is begun for a claim goes on when the kubelet loses interest; it joins in when it asks again. An Unprepare ends
  it, and only begins when nothing of it is left, also no thread of the backend's: the claim ends unprepared.
* A crash at any step leaves a record that says "started": Prepare does all of it again, Unprepare undoes all of it.
  Where no hook has a part in it there is no "started": a spec alone is left, which says whose it is, and Unprepare
  finds that.
* After a reboot hardware and specs are as if nothing had been, so a record of another boot counts as started, and
  ``allocate`` begins with an empty ``state``.
* A claim that was allocated anew without an Unprepare in between is undone first.
* An error is one claim's own: others go on.

Source: DRA contract sections 2.3, 2.4, 3.4.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

import attrs

from ...cdi import CdiDirectory, CdiSpec, parse_spec
from ...cluster.api import ApiError
from ...concurrency.threads import offload
from ...errors import (
    AllocationError,
    CdiWriteError,
    CheckpointError,
    ClaimError,
    EditConflictError,
    HookTimeoutError,
    InvalidValueError,
    KdpError,
    NotReady,
    sentence,
)
from ...model.backend import Allocation
from ...model.devices import Device, Health
from ...model.edits import ContainerEdits, Mount
from ...supervision.findings import resource_of
from ...supervision.hooks import check_state
from .cdi_specs import Rendered, kind_of, render_part, spec_of
from .checkpoint import Answer, Locks, Record, SavedPart, Store
from .metadata import MetadataFiles
from .orphans import Orphans
from .parameters import Parameters, read_parameters
from .plan import Part, Plan, check_free, plan_of, result_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from ...cluster.api import ClusterApi
    from ...hardware import Host
    from ...model.claims import Claim, NetworkData
    from ...supervision.supervisor import Supervisor
    from .status import ClaimStatusWriter

__all__ = ["Outcome", "Preparer"]

logger = logging.getLogger(__name__)

FETCH_SECONDS = 8.0
"""For the claim from the API; the kubelet gives up after 45 s, and a pod's author should know sooner."""

DISCOVERY_SECONDS = 5.0
"""How long a Prepare waits for the first discovery."""


@final
@attrs.frozen(kw_only=True)
class Outcome:
    """What the kubelet is told of one claim.

    Attributes:
        devices: Its devices; none: it has none of this driver, or failed.
        error: Why it failed; "": it did not.
    """

    devices: tuple[Answer, ...] = ()
    error: str = ""


class Preparer:
    """Prepares the claims of one driver, and undoes it. asyncio only; use it from one loop.

    Args:
        driver: The driver's name.
        pool: The pool's name.
        supervisor: The backend.
        api: The API server.
        host: The node's files.
        directory: The driver's data directory; several processes may share it.
        cdi: Where container runtimes find specs.
        boot_id: Which boot of the node this is; "": unknown, so that none is told from another.
        statuses: Writes into claims what is ready; None: nobody does.
        metadata: Whether containers get a file that describes their devices.

    Attributes:
        store: The records.
    """

    def __init__(
        self,
        driver: str,
        *,
        pool: str,
        supervisor: Supervisor,
        api: ClusterApi,
        host: Host,
        directory: Path,
        cdi: CdiDirectory,
        boot_id: str,
        statuses: ClaimStatusWriter | None = None,
        metadata: bool = False,
    ) -> None:
        self._driver = driver
        self._kind = kind_of(driver)
        self._pool = pool
        self._supervisor = supervisor
        self._backend = supervisor.backend
        self._api = api
        self._host = host
        self._cdi = cdi
        self._boot_id = boot_id
        self._statuses = statuses
        self._metadata = MetadataFiles(directory, driver=driver, host=host)
        self._has_metadata = metadata
        self.store = Store(directory / "claims")
        self._locks = Locks(directory / "serialize.lock")
        self._orphans = Orphans(driver, store=self.store, locks=self._locks, cdi=cdi, fetch=self._fetch_surely)
        self._preparing: dict[str, asyncio.Task[Outcome]] = {}
        self._undoing: dict[str, asyncio.Task[Outcome]] = {}
        self._late: set[str] = set()
        self._is_closed = False

    # -- what the kubelet asks for -------------------------------------------------------------------------------------

    async def prepare(self, claims: Iterable[Claim]) -> dict[str, Outcome]:
        """Prepare claims, all beside one another; returns one outcome for each, by UID. Raises nothing."""
        return await self._each(claims, self._join_prepare)

    async def unprepare(self, claims: Iterable[Claim]) -> dict[str, Outcome]:
        """Undo claims, also those that are unknown or gone; returns one outcome for each, by UID. Raises nothing."""
        return await self._each(claims, self._join_unprepare)

    async def close(self, seconds: float) -> None:
        """Let what is going on end, within so many seconds; then give it up. What was only started says so on disk."""
        self._is_closed = True
        if self._statuses is not None:
            self._statuses.close()
        jobs = {*self._preparing.values(), *self._undoing.values()}
        if jobs:
            _, left = await asyncio.wait(jobs, timeout=seconds)
            for job in left:
                job.cancel()
            if left:
                await asyncio.wait(left, timeout=1.0)

    async def _each(self, claims: Iterable[Claim], call: Callable[[Claim], Awaitable[Outcome]]) -> dict[str, Outcome]:
        unique = {claim.uid: claim for claim in claims}
        outcomes = await asyncio.gather(*(call(claim) for claim in unique.values()))
        return dict(zip(unique, outcomes, strict=True))

    async def _join_prepare(self, claim: Claim) -> Outcome:
        return await self._join(self._preparing, claim, self._prepare)

    async def _join_unprepare(self, claim: Claim) -> Outcome:
        if self._statuses is not None:
            self._statuses.forget(claim.uid)
        job = self._preparing.get(claim.uid)
        if job is not None:
            job.cancel()
            await asyncio.wait({job})
        return await self._join(self._undoing, claim, self._undo_locked)

    async def _join(
        self,
        jobs: dict[str, asyncio.Task[Outcome]],
        claim: Claim,
        work: Callable[[Claim], Awaitable[tuple[Answer, ...]]],
    ) -> Outcome:
        """Wait for what is going on for a claim, or begin it; it goes on when whoever waits is cancelled."""
        job = jobs.get(claim.uid)
        if job is None:
            if self._is_closed:
                return Outcome(error="the driver is stopping; the kubelet asks again")
            job = jobs[claim.uid] = asyncio.create_task(self._outcome(claim, work))
            job.add_done_callback(functools.partial(_forget, jobs, claim.uid))
        await asyncio.wait({job})
        if job.cancelled():
            why = "the driver is stopping" if self._is_closed else "the claim was unprepared meanwhile"
            return Outcome(error=f"{why}; the kubelet asks again")
        return job.result()

    async def _outcome(self, claim: Claim, work: Callable[[Claim], Awaitable[tuple[Answer, ...]]]) -> Outcome:
        try:
            return Outcome(devices=await work(claim))
        except KdpError as error:
            text = sentence(error)
        except Exception as error:
            logger.exception("%s: internal error with claim %s/%s", self._driver, claim.namespace, claim.name)
            text = sentence(error)
        logger.warning("%s: claim %s/%s (%s): %s", self._driver, claim.namespace, claim.name, claim.uid, text)
        return Outcome(error=text)

    # -- Prepare -------------------------------------------------------------------------------------------------------

    async def _prepare(self, claim: Claim) -> tuple[Answer, ...]:
        devices = await self._prepare_locked(claim)
        if self._statuses is not None and not self._is_closed:
            self._statuses.prepared(claim, devices)
        return devices

    async def _prepare_locked(self, claim: Claim) -> tuple[Answer, ...]:
        async with self._locks.claim(claim.uid):
            record = await offload(lambda: self.store.read(claim.uid))
            fetched = await self._fetch(claim, needed=not self._is_current(record))
            if fetched is not None:
                keys = result_keys(fetched, claim, self._driver)
                if record is not None and keys != frozenset(use.key for use in record.uses):
                    await self._undo(record)  # allocated anew, and nobody has told us that the old one is over
                    record = None
            if record is not None and self._is_current(record):
                await self._restore_spec(record)
                return record.devices
            assert fetched is not None  # it was needed
            return await self._prepare_anew(claim, await self._plan(fetched, claim), record)

    def _is_current(self, record: Record | None) -> bool:
        return record is not None and record.is_complete and self._is_this_boot(record)

    def _is_this_boot(self, record: Record) -> bool:
        return record.boot_id == self._boot_id

    async def _fetch(self, claim: Claim, *, needed: bool) -> Mapping[str, Any] | None:
        """Return the claim from the API; None: it cannot be had, and is not needed.

        Raises:
            ApiError: It cannot be had.
        """
        try:
            return await self._fetch_surely(claim)
        except ApiError as error:
            if needed or error.status == 404:
                raise
        return None

    async def _fetch_surely(self, claim: Claim) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                return await self._api.claim(claim.namespace, claim.name)
        except TimeoutError:
            raise ApiError(
                f"the API server did not give claim {claim.namespace}/{claim.name} within {FETCH_SECONDS:g} s"
            ) from None

    async def _plan(self, item: Mapping[str, Any], claim: Claim) -> Plan:
        return plan_of(
            item,
            claim,
            driver=self._driver,
            pool=self._pool,
            devices=await self._devices() if result_keys(item, claim, self._driver) else {},
            resource_of=lambda device: resource_of(device, self._backend),
            declared=self._backend.config,
        )

    async def _devices(self) -> Mapping[str, Device]:
        """Return the devices that there are now.

        Raises:
            NotReady: The backend has not said, or is closed.
        """
        latest = self._supervisor.discovery
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCOVERY_SECONDS):
                while latest.value.devices is None:
                    await latest.after(latest.version)
        found = latest.value
        if found.devices is None or found.problem is not None:
            raise NotReady(f"{self._supervisor.label} is not ready: {found.problem}")
        return {device.id: device for device in found.devices}

    async def _prepare_anew(self, claim: Claim, plan: Plan, before: Record | None) -> tuple[Answer, ...]:
        if not plan.parts:
            return ()
        states = {} if before is None or not self._is_this_boot(before) else _states(before)
        record = Record(
            claim=claim,
            is_complete=False,
            boot_id=self._boot_id,
            parts=tuple(SavedPart(part=part, state=states.get(part, {})) for part in plan.parts),
            config=plan.config,
            more={} if before is None else before.more,
        )
        if self._supervisor.hooks.overridden("allocate") or self._has_metadata:
            record = await self._prepare_in_steps(plan, record)
        else:
            devices = await self._devices()
            async with self._locks.whole():
                record = await offload(lambda: self._prepare_at_once(plan, record, devices))
        logger.info(
            "%s: claim %s/%s (%s) is prepared: %s",
            self._driver,
            claim.namespace,
            claim.name,
            claim.uid,
            ", ".join(dict.fromkeys(use.device_id for use in plan.uses)),
        )
        return record.devices

    async def _prepare_in_steps(self, plan: Plan, record: Record) -> Record:
        async with self._locks.whole():
            await offload(lambda: self._begin(record))
        devices = await self._devices()
        metadata = await self._write_metadata(plan, devices)
        rendered: list[Rendered] = []
        for position, saved in enumerate(record.parts):
            found, state = await self._allocate(plan, saved, devices, metadata.get(saved.part))
            rendered.append(found)
            if state != saved.state:
                record = _with_part(record, position, attrs.evolve(saved, state=state))
                if position + 1 < len(record.parts):  # the last one goes with "complete"
                    await self._save(record)
        answers = tuple(answer for found in rendered for answer in found.answers)
        if any(answer.network for answer in answers):
            await self._write_metadata(plan, devices, answers)
        return await offload(lambda: self._complete(plan, record, rendered))

    def _prepare_at_once(self, plan: Plan, record: Record, devices: Mapping[str, Device]) -> Record:
        """Prepare what no hook has a part in: nothing can be left but a spec, which says whose it is (`Orphans`)."""
        self._check_free(record)
        rendered = [self._rendered(plan.claim, saved.part, devices, None) for saved in record.parts]
        must_last = self._supervisor.hooks.overridden("released")  # after a loss of power no container has a device
        try:
            return self._complete(plan, record, rendered, must_last=must_last)
        except CheckpointError:
            with suppress(CdiWriteError):
                self._write_spec(plan.claim, None)
            raise

    async def _write_metadata(
        self, plan: Plan, devices: Mapping[str, Device], answers: Sequence[Answer] = ()
    ) -> Mapping[Part, Mount]:
        if not self._has_metadata or any(use.device_id not in devices for use in plan.uses):
            return {}  # what has just gone is refused in a moment
        return await offload(lambda: self._metadata.write(plan, devices, answers))

    def _check_free(self, record: Record) -> None:
        others = (each for each in self.store.all() if each.claim.uid != record.claim.uid)
        check_free(record.uses, ((each.claim, each.uses) for each in others))

    def _begin(self, record: Record) -> None:
        """Save that a claim is started, unless another one has its devices."""
        self._check_free(record)
        self.store.write(record)

    def _complete(self, plan: Plan, record: Record, rendered: Sequence[Rendered], *, must_last: bool = True) -> Record:
        """Write a claim's spec, and then save that it is complete; return the record."""
        spec = spec_of(self._driver, plan.claim, plan.parts, [each for found in rendered for each in found.devices])
        record = attrs.evolve(
            record,
            is_complete=True,
            devices=tuple(answer for found in rendered for answer in found.answers),
            spec=None if spec is None else spec.as_json(),
        )
        self._write_spec(record.claim, spec)
        self.store.write(record, must_last=must_last)
        return record

    def _rendered(self, claim: Claim, part: Part, known: Mapping[str, Device], metadata: Mount | None) -> Rendered:
        """Return what a request is given whose devices say it all themselves."""
        devices = _devices_of(part, known)
        try:
            edits = ContainerEdits.merge(
                ((device.id, device.edits) for device in devices), joined_env=self._backend.joined_env
            )
            return self._render(claim, part, devices, edits, metadata)
        except (EditConflictError, InvalidValueError) as error:
            raise AllocationError(f"request {part.request}: {error}") from error

    async def _allocate(
        self, plan: Plan, saved: SavedPart, known: Mapping[str, Device], metadata: Mount | None
    ) -> tuple[Rendered, Mapping[str, Any]]:
        claim, part = plan.claim, saved.part
        if not self._supervisor.hooks.overridden("allocate"):
            return await offload(lambda: self._rendered(claim, part, known, metadata)), saved.state
        seconds = self._supervisor.deadlines.allocate
        config = plan.parameters.of_request(part.request)
        devices = _devices_of(part, known)
        allocation = self._allocation(claim, saved, devices, config, seconds)

        def finish(edits: Any) -> tuple[Rendered, Mapping[str, Any]]:
            if not isinstance(edits, ContainerEdits):
                raise InvalidValueError(f"it returned {edits!r}: must be kdp.ContainerEdits")
            rendered = self._render(claim, part, devices, edits, metadata, allocation.network)
            return rendered, check_state(allocation.state)

        self._late.add(claim.uid)
        try:
            result: tuple[Rendered, Mapping[str, Any]] = await self._supervisor.call(
                "allocate", allocation, deadline=seconds, then=finish
            )
        except HookTimeoutError:
            raise  # its thread may still be at it
        except KdpError:
            self._late.discard(claim.uid)
            raise
        self._late.discard(claim.uid)
        return result

    def _allocation(
        self, claim: Claim, saved: SavedPart, devices: Iterable[Device], config: Any, seconds: float
    ) -> Allocation:
        part = saved.part
        unique = {device.id: device for device in devices}
        return Allocation(
            resource=part.resource,
            devices=tuple(unique[device_id] for device_id in sorted(unique)),
            deadline=time.monotonic() + seconds,
            state=check_state(dict(saved.state)),
            claim=claim,
            request=part.request,
            config=config,
            consumed=part.consumed,
            share_id=part.share_id,
            admin_access=part.is_admin,
        )

    def _render(
        self,
        claim: Claim,
        part: Part,
        devices: Sequence[Device],
        edits: ContainerEdits,
        metadata: Mount | None,
        network: Mapping[str, NetworkData] | None = None,
    ) -> Rendered:
        return render_part(
            claim,
            part,
            devices,
            edits,
            driver=self._driver,
            host=self._host,
            joined_env=self._backend.joined_env,
            metadata=metadata,
            network=network,
        )

    def _write_spec(self, claim: Claim, spec: CdiSpec | None) -> None:
        if spec is None:
            self._cdi.remove_part(self._kind, claim.uid)
        else:
            self._cdi.write(spec, claim.uid)

    async def _restore_spec(self, record: Record) -> None:
        """Have a prepared claim's spec on the disk again, as it was."""

        def restore() -> None:
            if record.spec is not None:
                self._write_spec(record.claim, _parsed(record.spec))

        await offload(restore)

    async def _save(self, record: Record) -> None:
        await offload(lambda: self.store.write(record))

    # -- Unprepare -----------------------------------------------------------------------------------------------------

    async def _undo_locked(self, claim: Claim) -> tuple[Answer, ...]:
        async with self._locks.claim(claim.uid):
            record = await offload(lambda: self.store.read(claim.uid) or self._orphans.rebuilt(claim.uid))
            if record is not None:
                await self._undo(record)
                logger.info("%s: claim %s/%s (%s) is unprepared", self._driver, claim.namespace, claim.name, claim.uid)
        return ()

    async def _undo(self, record: Record) -> None:
        claim = record.claim
        hooks = self._supervisor.hooks
        if claim.uid in self._late:
            await hooks.idle("allocate", deadline=self._supervisor.deadlines.released)
            self._late.discard(claim.uid)
        if hooks.overridden("released") and record.parts:
            if record.is_complete:
                record = attrs.evolve(record, is_complete=False)
                await self._save(record)
            known = await self._devices()
            parameters = self._parameters(record)
            for position, saved in enumerate(record.parts):
                if not saved.is_released:
                    await self._release(claim, saved, known, parameters)
                    record = _with_part(record, position, attrs.evolve(saved, is_released=True))
                    if position + 1 < len(record.parts):  # the last one goes with the whole record
                        await self._save(record)
        await offload(lambda: self._forget_claim(claim.uid))

    def _forget_claim(self, uid: str) -> None:
        self._cdi.remove_part(self._kind, uid)
        self._metadata.remove(uid)
        self.store.remove(uid)

    async def _release(
        self, claim: Claim, saved: SavedPart, known: Mapping[str, Device], parameters: Parameters
    ) -> None:
        seconds = self._supervisor.deadlines.released
        gone = Health.unhealthy("the device is gone")
        devices = (known.get(use.device_id) or Device(id=use.device_id, health=gone) for use in saved.part.uses)
        config = parameters.of_request(saved.part.request)
        allocation = self._allocation(claim, saved, devices, config, seconds)
        await self._supervisor.call("released", allocation, deadline=seconds)

    def _parameters(self, record: Record) -> Parameters:
        """Return what a claim was prepared with, as far as this version of the backend understands it."""
        try:
            return read_parameters(record.config, driver=self._driver, declared=self._backend.config)
        except ClaimError as error:
            logger.warning("%s: released() of claim %s gets no config: %s", self._driver, record.claim.uid, error)
            return Parameters()

    # -- what was left behind ------------------------------------------------------------------------------------------

    async def recover(self) -> list[str]:
        """Find claims again whose record is lost or broken, by their CDI specs; returns their UIDs. For the start.

        Raises:
            CheckpointError: The disk does not take it.
        """
        return await self._orphans.recover()

    async def collect(self, *, grace: float) -> list[str]:
        """Undo claims that are gone from the API for so many seconds; returns their UIDs. Called every now and then.

        A claim that cannot be asked for is not gone. Meant for what the kubelet has forgotten: a claim that it knows is
        unprepared by it, and then there is nothing left to do.

        Raises:
            CheckpointError: The disk does not say what there is.
        """
        undone: list[str] = []
        for claim in await self._orphans.gone(grace=grace):
            if claim.uid in self._preparing:
                continue
            logger.warning(
                "%s: claim %s/%s (%s) is gone, and the kubelet has not unprepared it: it is undone",
                self._driver,
                claim.namespace,
                claim.name,
                claim.uid,
            )
            if not (await self._join_unprepare(claim)).error:
                undone.append(claim.uid)
        return undone


def _forget(jobs: dict[str, asyncio.Task[Outcome]], uid: str, job: asyncio.Task[Outcome]) -> None:
    if jobs.get(uid) is job:
        del jobs[uid]


def _devices_of(part: Part, known: Mapping[str, Device]) -> list[Device]:
    """Return the devices of a request.

    Raises:
        ClaimError: One is not there any more.
    """
    devices = [known[use.device_id] for use in part.uses if use.device_id in known]
    if len(devices) < len(part.uses):
        raise ClaimError(f"request {part.request}: a device has just gone; the kubelet asks again")
    return devices


def _states(record: Record) -> dict[Part, Mapping[str, Any]]:
    return {saved.part: saved.state for saved in record.parts if not saved.is_released}


def _with_part(record: Record, position: int, saved: SavedPart) -> Record:
    parts = list(record.parts)
    parts[position] = saved
    return attrs.evolve(record, parts=tuple(parts))


def _parsed(spec: Mapping[str, Any]) -> CdiSpec:
    import json

    return parse_spec(json.dumps(spec), where="the saved CDI spec")
