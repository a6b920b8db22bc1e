"""`Preparer`: Prepare and Unprepare, what the kubelet asks for of claims, without gRPC.

What is done for a claim, in which order and why, is said by `ClaimLifecycle`; what one another's calls mean, by `Jobs`.
Here the steps are taken: on the disk, at the API server and in the backend, under the claim's lock, so that one thing
at a time is done for a claim, for all callers in all processes. An error is one claim's own: others go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from ...cdi import CdiDirectory, CdiSpec, parse_spec
from ...cluster.api import ApiError
from ...concurrency.observable import Observable
from ...concurrency.threads import offload
from ...errors import AllocationError, CdiWriteError, CheckpointError, ClaimError, KdpError, sentence
from ...model.names import check_claim_uid
from ...storage.files import why_no_file
from ...supervision.backend_validation import resource_of
from ...supervision.health import SCRUBBED
from ...supervision.hooks import check_state
from . import steps
from .cdi_specs import current, kind_of, outdated
from .checkpoint import Record, Store
from .claim_locks import Locks
from .hooks import ClaimHooks
from .jobs import JobOutcome, Jobs
from .lifecycle import ClaimLifecycle, ClaimState
from .metadata import MetadataFiles
from .orphans import Orphans
from .parameters import Parameters
from .plan import ClaimPlan, check_free

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from ...cluster.api import ClusterApi
    from ...concurrency.history import History
    from ...hardware import Host
    from ...model.claims import Claim
    from ...model.devices import Device
    from ...model.edits import Mount
    from ...supervision.given import Given
    from ...supervision.supervisor import Supervisor
    from .checkpoint import SavedAnswer
    from .plan import ClaimPart
    from .status import ClaimStatusWriter

logger = logging.getLogger(__name__)

FETCH_SECONDS = 8.0
"""For the claim from the API; the kubelet gives up after 45 s, and a pod's author should know sooner."""


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
        scrubs: Whether a device is unhealthy while ``released`` fails for the claim that had it.
        history: Takes what becomes of claims; None: nobody reads it.

    Attributes:
        store: The records.
        doubts: Its version grows when the disk did not take what a claim needs.
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
        scrubs: bool = False,
        history: History | None = None,
    ) -> None:
        self._history = history
        self._driver = driver
        self._kind = kind_of(driver)
        self._api = api
        self._cdi = cdi
        self._statuses = statuses
        self._metadata = MetadataFiles(directory, driver=driver, host=host)
        self._has_metadata = metadata
        self._host = host
        self._meanings: Mapping[str, tuple[object, ...]] = {}
        self.store = Store(directory / "claims")
        self._locks = Locks(directory / "serialize.lock")
        self._orphans = Orphans(driver, store=self.store, locks=self._locks, cdi=cdi, fetch=self._fetch_surely)
        self._hooks = ClaimHooks(driver, supervisor, host, records=self._orphans.known)
        self._scrubs = scrubs
        self._unscrubbed: dict[str, str] = {}
        self._lifecycle = ClaimLifecycle(
            driver=driver,
            pool=pool,
            boot_id=boot_id,
            allocates=self._hooks.overridden("allocate") or metadata,
            releases=self._hooks.overridden("released"),
            resource_of=partial(resource_of, backend=supervisor.backend),
            declared=supervisor.backend.config,
        )
        self.doubts: Observable[None] = Observable(None)
        self._jobs = Jobs()
        self._takers: Mapping[type[steps.Step[Any]], Callable[[Any], Awaitable[Any]]] = {
            steps.Read: self._read,
            steps.Fetch: self._fetch,
            steps.Discover: self._discover,
            steps.Restore: self._restore,
            steps.Start: self._start,
            steps.Allocate: self._hooks.allocate,
            steps.Save: self._save,
            steps.Complete: self._complete,
            steps.Commit: self._commit,
            steps.AwaitAllocate: self._hooks.await_allocate,
            steps.Release: self._release,
            steps.Forget: self._forget,
            steps.Clear: self._clear,
        }

    # -- what the kubelet asks for -------------------------------------------------------------------------------------

    async def prepare(self, claims: Iterable[Claim]) -> dict[str, JobOutcome]:
        """Prepare claims, all beside one another; returns one outcome for each, by UID. Raises nothing."""
        unique = {claim.uid: claim for claim in claims}
        joined = self._joined(unique.values(), self._lifecycle.prepare, undoes=False)
        outcomes = dict(zip(unique, await asyncio.gather(*joined), strict=True))
        if self._statuses is not None and not self._jobs.is_closed:
            for uid, outcome in outcomes.items():
                if not outcome.error:
                    self._statuses.prepared(unique[uid], outcome.devices)
        return outcomes

    async def unprepare(self, claims: Iterable[Claim]) -> dict[str, JobOutcome]:
        """Undo claims, also those that are unknown or gone; returns one outcome for each, by UID. Raises nothing."""
        unique = {claim.uid: claim for claim in claims}
        if self._statuses is not None:
            for uid in unique:
                self._statuses.forget(uid)
        joined = self._joined(unique.values(), self._lifecycle.unprepare, undoes=True)
        return dict(zip(unique, await asyncio.gather(*joined), strict=True))

    async def close(self, seconds: float) -> None:
        """Let what is going on end, within so many seconds; then give it up. What was only started says so on disk."""
        if self._statuses is not None:
            self._statuses.close()
        await self._jobs.close(seconds)

    def _joined(
        self, claims: Iterable[Claim], lives: Callable[[Claim], steps.Run[tuple[SavedAnswer, ...]]], *, undoes: bool
    ) -> list[Awaitable[JobOutcome]]:
        return [self._jobs.join(claim.uid, partial(self._live, claim, lives(claim)), undoes=undoes) for claim in claims]

    async def _live(self, claim: Claim, run: steps.Run[tuple[SavedAnswer, ...]]) -> JobOutcome:
        """Take a run's steps, under the claim's lock, until it returns or one of them fails."""
        extra: dict[str, str] = {}
        try:
            check_claim_uid(claim.uid)
            async with self._locks.claim(claim.uid):
                step = _next(run, None)
                while isinstance(step, steps.Step):
                    step = _next(run, await self._takers[type(step)](step))
                return step
        except KdpError as error:
            text = sentence(error)
            if isinstance(error, AllocationError) and error.__cause__ is None:  # not what kdp made of a contradiction
                extra = {"hook": "allocate", "reason": text}
            if isinstance(error, (CdiWriteError, CheckpointError)):
                self.doubts.set(None)
        except Exception as error:
            logger.exception("%s: internal error with claim %s/%s", self._driver, claim.namespace, claim.name)
            text = sentence(error)
        name = f"{claim.namespace}/{claim.name}"
        logger.warning("%s: claim %s (%s): %s", self._driver, name, claim.uid, text, extra=extra)
        if self._history is not None:
            self._history.add("failed", self._driver, f"claim {name}: {text}")
        return JobOutcome(error=text)

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _read(self, step: steps.Read) -> Record | None:
        return await offload(lambda: self.store.read(step.claim.uid) or self._orphans.rebuilt(step.claim.uid))

    async def _fetch(self, step: steps.Fetch) -> Mapping[str, Any] | None:
        try:
            return await self._fetch_surely(step.claim)
        except ApiError as error:
            if step.is_needed or error.status == 404:
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

    async def _discover(self, _: steps.Discover) -> Mapping[str, Device]:
        return await self._hooks.devices()

    async def _restore(self, step: steps.Restore) -> None:
        known, record = self._hooks.latest, step.record
        if known is not None or not await offload(self._cdi.file(self._kind, step.claim.uid).exists):
            await offload(lambda: self._write_spec(record, known or {}))
        if record.spec is not None and (lost := outdated(record, _parsed(record.spec), known or {})):
            raise ClaimError("; ".join(lost.values()))

    async def _start(self, step: steps.Start) -> Mapping[ClaimPart, Mount]:
        def begin() -> None:
            self._check_free(step.record)
            self.store.write(step.record)

        async with self._locks.whole():
            await offload(begin)
        return await self._write_metadata(step)

    async def _save(self, step: steps.Save) -> None:
        await offload(lambda: self.store.write(step.record))

    async def _complete(self, step: steps.Complete) -> None:
        if any(answer.network for answer in step.record.devices):
            await self._write_metadata(step)
        known = self._hooks.latest or {}
        await offload(lambda: self._write(step.record, known))
        self._log_prepared(step)

    async def _commit(self, step: steps.Commit) -> Record:
        """Nothing can be left but a spec, which says whose it is (`Orphans`)."""
        known = await self._hooks.devices()

        def commit() -> Record:
            self._check_free(step.record)
            record = self._lifecycle.completed(step.plan, step.record, self._hooks.render(step.record, known))
            try:
                # After a loss of power no container has a device: only a hook `released` must know of it then.
                self._write(record, known, must_last=self._lifecycle.releases)
            except CheckpointError:
                with suppress(CdiWriteError):
                    self._cdi.remove_part(self._kind, step.claim.uid)
                raise
            return record

        async with self._locks.whole():
            record = await offload(commit)
        self._log_prepared(step)
        return record

    async def _release(self, step: steps.Release) -> None:
        """Write first what is saved afterwards: once the hook has returned, nothing may fail that repeats it."""
        draft = await offload(lambda: self.store.draft(step.record))
        state = check_state(step.saved.state)
        try:
            await self._hooks.release(step, state)
        except BaseException:
            await offload(draft.discard)
            if state != step.saved.state:  # what is done need not be done again
                begun = step.record.with_state(step.saved.part, check_state(state))
                await offload(lambda: self.store.write(begun, must_last=False))
            if self._scrubs:
                self._unscrubbed.setdefault(step.claim.uid, time.strftime("since %H:%M:%S"))
                self._hooks.judge_again()
            raise
        await offload(lambda: self.store.commit(draft, step.record))

    async def _clear(self, step: steps.Clear) -> None:
        claim = step.claim
        if await offload(lambda: self._remove(claim)):
            logger.warning(
                "%s: claim %s/%s (%s) is unprepared, but its devices are unknown, so released() was not called",
                self._driver,
                claim.namespace,
                claim.name,
                claim.uid,
            )

    def _remove(self, claim: Claim) -> bool:
        has_spec = self._cdi.remove_part(self._kind, claim.uid)
        self._metadata.remove(claim.uid)
        return self.store.remove(claim.uid) or has_spec

    async def _forget(self, step: steps.Forget) -> None:
        claim = step.claim
        await offload(lambda: self._remove(claim))
        self._unscrubbed.pop(claim.uid, None)
        self._hooks.judge_again()
        logger.info("%s: claim %s/%s (%s) is unprepared", self._driver, claim.namespace, claim.name, claim.uid)
        if self._history is not None:
            self._history.add("unprepared", self._driver, f"claim {claim.namespace}/{claim.name}")

    # -- what steps have in common -------------------------------------------------------------------------------------

    def _check_free(self, record: Record) -> None:
        others = (each for each in self._orphans.known() if each.claim.uid != record.claim.uid)
        check_free(record.uses, ((each.claim, each.uses) for each in others))

    def _write(self, record: Record, known: Mapping[str, Device], *, must_last: bool = True) -> None:
        """Write a claim's spec, and then its record."""
        self._write_spec(record, known)
        self.store.write(record, must_last=must_last)

    def _write_spec(self, record: Record, known: Mapping[str, Device]) -> None:
        """Write a claim's spec as it is to be seen now, of these devices."""
        spec = None if record.spec is None else current(record, _parsed(record.spec), known, self._host)
        if spec is None:
            self._cdi.remove_part(self._kind, record.claim.uid)
        else:
            self._cdi.write(spec, record.claim.uid)

    async def _write_metadata(self, step: steps.Start | steps.Complete) -> Mapping[ClaimPart, Mount]:
        if not self._has_metadata:
            return {}
        known = await self._hooks.devices()
        if any(use.device_id not in known for use in step.plan.uses):
            return {}  # what has just gone is refused in a moment
        return await offload(lambda: self._metadata.write(step.plan, known, step.record.devices))

    def _log_prepared(self, step: steps.Complete | steps.Commit) -> None:
        claim = step.claim
        ids = tuple(dict.fromkeys(use.device_id for use in step.plan.uses))
        text = ", ".join(ids)
        logger.info("%s: claim %s/%s (%s) is prepared: %s", self._driver, claim.namespace, claim.name, claim.uid, text)
        if self._history is not None:
            self._history.add("prepared", self._driver, f"claim {claim.namespace}/{claim.name}", ids)

    def obstacles(self, *, surely: bool) -> Mapping[str, str]:
        """Return why no claim can be prepared, whatever it asks for, by directory: ``cdi``, ``claims``.

        Blocks for the disk. ``surely`` is that of `kdp.storage.files.why_no_file`.
        """
        found: dict[str, str] = {}
        for directory, name, what in ((self._cdi.path, "cdi", "CDI files"), (self.store.directory, "claims", "claims")):
            why = why_no_file(directory, surely=surely)
            if why is not None:
                text = f"{what} cannot be written in {directory} ({why}); mount it writable"
                found[name] = f"no claim can be prepared: {text}"
        return found

    # -- what a spec means later ---------------------------------------------------------------------------------------

    def outdated(self, devices: Iterable[Device]) -> dict[str, str]:
        """Return why devices are not as claims were given them, or not scrubbed, by device id. It does not block."""
        given: dict[str, list[Given]] = {}
        for record in self.store.known:
            if self._lifecycle.state_of(record) is ClaimState.PREPARED:
                for use, each in record.given:
                    given.setdefault(use.device_id, []).append(each)
        found: dict[str, str] = {}
        for device in devices if given else ():
            faults = (each.fault(device) for each in given.get(device.id, ()))
            if (fault := next((fault for fault in faults if fault is not None), None)) is not None:
                found[device.id] = fault
        return {**found, **self._withheld()}

    def _withheld(self) -> dict[str, str]:
        """Return the devices whose last claim could not be released, each with the reason of its health."""
        if not self._unscrubbed:
            return {}
        known = self.store.known
        in_use = {use.device_id for each in known if each.claim.uid not in self._unscrubbed for use in each.owed}
        return {
            use.device_id: f"{SCRUBBED}, {self._unscrubbed[record.claim.uid]}"
            for record in known
            if record.claim.uid in self._unscrubbed
            for use in record.owed
            if use.device_id not in in_use
        }

    async def renew(self) -> None:
        """Write the specs of prepared claims anew where what they mean has changed. Called after each discovery.

        A runtime reads them at each start of a container. What cannot be written is logged, and tried again.
        """
        known = self._hooks.latest
        if known is None:
            return
        records = [each for each in self.store.known if self._lifecycle.state_of(each) is ClaimState.PREPARED]
        meanings = await offload(lambda: {each.claim.uid: self._meaning(each, known) for each in records})
        for uid, meaning in meanings.items():
            if self._meanings.get(uid) == meaning:
                continue
            try:
                async with self._locks.claim(uid):
                    await offload(partial(self._renew, uid, known))
            except KdpError as error:
                if self._meanings.get(uid) != ():  # a failure that goes on is no news
                    logger.warning("%s: the CDI file of claim %s is outdated: %s", self._driver, uid, sentence(error))
                self.doubts.set(None)
                meanings[uid] = ()
        self._meanings = meanings

    def _meaning(self, record: Record, known: Mapping[str, Device]) -> tuple[object, ...]:
        """Return what a claim's spec is made of that can change: its devices, and what their nodes are."""
        devices = [known[use.device_id] for use in record.uses if use.device_id in known]
        spec = None if record.spec is None else current(record, _parsed(record.spec), known, self._host)
        is_there = self._cdi.file(self._kind, record.claim.uid).exists()  # somebody may have removed it
        return (spec, is_there, *((device.edits, device.identity) for device in devices))

    def _renew(self, uid: str, known: Mapping[str, Device]) -> None:
        record = self.store.read(uid)
        if record is None or self._lifecycle.state_of(record) is not ClaimState.PREPARED:
            return  # another process was quicker
        is_same = all(
            use.device_id in known and not given.is_other_hardware(known[use.device_id]) for use, given in record.given
        )
        if is_same and all(use.device_id in known for use in record.uses) and not self._hooks.overridden("allocate"):
            renewed = self._rendered_anew(record, known)
            if renewed != record:
                self.store.write(renewed, must_last=False)
                record = renewed
        self._write_spec(record, known)

    def _rendered_anew(self, record: Record, known: Mapping[str, Device]) -> Record:
        """Return a claim's record as a Prepare would make it of the devices as they are, for the same hardware."""
        plan = ClaimPlan(
            claim=record.claim,
            parts=tuple(saved.part for saved in record.parts),
            parameters=Parameters(),
            config=record.config,
            pod_claim=record.pod_claim,
        )
        mounts = self._metadata.write(plan, known, record.devices) if self._has_metadata else {}
        rendered = [self._hooks.rendered(record.claim, part, known, mounts.get(part)) for part in plan.parts]
        renewed = self._lifecycle.completed(plan, record, rendered)
        answers = zip(renewed.devices, record.devices, strict=True)
        return attrs.evolve(renewed, devices=tuple(attrs.evolve(new, given=old.given) for new, old in answers))

    # -- what was left behind ------------------------------------------------------------------------------------------

    async def recover(self) -> list[str]:
        """Find claims again whose record is lost or broken, by their CDI specs; returns their UIDs. For the start.

        Raises:
            CheckpointError: The disk does not take it.
        """
        return await self._orphans.recover()

    async def collect(self, *, grace: float) -> list[str]:
        """Undo claims that are gone from the API for so many seconds; returns their UIDs. Called every now and then.

        A claim that cannot be fetched is not gone. Meant for what the kubelet has forgotten: a claim that it knows is
        unprepared by it, and then there is nothing left to do.

        Raises:
            CheckpointError: The disk does not say what there is.
        """
        undone: list[str] = []
        for claim in await self._orphans.gone(grace=grace):
            if self._jobs.is_preparing(claim.uid):
                continue
            logger.warning(
                "%s: claim %s/%s (%s) is gone, but the kubelet has not unprepared it; kdp undoes it",
                self._driver,
                claim.namespace,
                claim.name,
                claim.uid,
            )
            outcomes = await self.unprepare([claim])
            if not outcomes[claim.uid].error:
                undone.append(claim.uid)
        return undone


def _next(run: steps.Run[tuple[SavedAnswer, ...]], result: Any) -> steps.Step[Any] | JobOutcome:
    try:
        return run.send(result)
    except StopIteration as end:
        return JobOutcome(devices=end.value)


def _parsed(spec: Mapping[str, Any]) -> CdiSpec:
    import json

    return parse_spec(json.dumps(spec), where="the saved CDI spec")
