"""`Preparer`: Prepare and Unprepare, what the kubelet asks for of claims, without gRPC.

What is done for a claim, in which order and why, is said by `ClaimLifecycle`. One thing at a time is done for a claim,
under its lock, for all callers in all processes. An error is one claim's own: others go on. In this process

* what is begun for a claim goes on when the kubelet loses interest; it joins in when it asks again;
* an Unprepare ends a Prepare, and begins when nothing of it is left: the claim ends unprepared;
* an Unprepare gives ``released`` a second, and then leaves it to `OwedReleases`; a Prepare that needs one of the
  devices waits for that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, final

import attrs

from ...cdi import CdiDirectory
from ...cluster.api import ApiError
from ...concurrency.observable import Observable
from ...concurrency.threads import offload
from ...errors import CdiWriteError, CheckpointError, KdpError, sentence
from ...hardware.host import boot_id_of
from ...model.names import check_claim_uid
from ...supervision.backend_validation import scrubs
from ...supervision.conditions import HELD
from .cdi_specs import current
from .checkpoint import Use
from .disk import ClaimFiles
from .hooks import ClaimHooks, RefusedError
from .lifecycle import ClaimLifecycle, OwedError
from .releases import OwedReleases
from .status import ClaimStatusWriter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from ...hardware import Host
    from ...model.claims import Claim
    from ...model.conditions import Condition
    from ...model.devices import Device
    from ...supervision.given import Given
    from ...supervision.supervisor import Supervisor
    from ..options import DriverOptions
    from ..plugin_holders import PluginHolders
    from .checkpoint import Record

logger = logging.getLogger(__name__)

PREPARE_SECONDS = 40.0
"""Seconds after its begin at which a Prepare ceases to wait for a release; the kubelet gives up after 45 s."""

ANSWER_SECONDS = 43.0
"""Seconds after which a Prepare answers that its hooks are not ready yet; they go on, and the next one joins in."""


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


class Preparer:
    """Prepares the claims of one driver, and undoes it. asyncio only; use it from one loop.

    Args:
        driver: The driver's name.
        supervisor: The backend.
        host: The node's files.
        options: See `DriverOptions`.
        holders: Knows the pods that hold devices of a device plugin; `None`: there can be none.

    Attributes:
        store: The records.
        obstacles: Returns why no claim can be prepared; see `ClaimFiles.obstacles`.
        doubts: Its version grows when the disk did not take what a claim needs.
    """

    def __init__(
        self,
        driver: str,
        *,
        supervisor: Supervisor,
        host: Host,
        options: DriverOptions,
        holders: PluginHolders | None = None,
    ) -> None:
        self._driver = driver
        self._history = options.history
        self._host = host
        self._statuses: ClaimStatusWriter | None = None
        if options.device_status:
            self._statuses = ClaimStatusWriter(options.api, driver, of_node=options.pool is None)
        directory = options.paths.plugins_dir / driver
        self._files = ClaimFiles(driver, directory=directory, cdi=CdiDirectory(options.cdi), host=host)
        self.store = self._files.store
        self.obstacles = self._files.obstacles
        self._locks = self._files.locks
        boot_id = boot_id_of(host) if options.boot_id is None else options.boot_id
        self._hooks = ClaimHooks(
            driver,
            supervisor,
            host,
            records=self._files.known,
            boot_id=boot_id,
            holders=holders,
            plugins_dir=options.paths.plugins_dir if options.pool is None else None,
        )
        self._life = ClaimLifecycle(
            driver=driver,
            pool=options.pool or options.node,
            boot_id=boot_id,
            api=options.api,
            files=self._files,
            hooks=self._hooks,
            describes=options.device_metadata,
            history=options.history,
        )
        self.doubts: Observable[None] = Observable(None)
        self._releases = OwedReleases(
            driver,
            self._life,
            self._locks,
            scrubs=scrubs(supervisor.backend, options.release_policy),
            doubts=self.doubts,
        )
        self._preparing: dict[str, asyncio.Task[JobOutcome]] = {}
        self._undoing: dict[str, asyncio.Task[JobOutcome]] = {}
        self._is_closed = False
        self._meanings: Mapping[str, tuple[object, ...]] = {}
        self._missing: dict[str, float] = {}

    # -- what the kubelet asks for -------------------------------------------------------------------------------------

    async def prepare(self, claims: Iterable[Claim]) -> dict[str, JobOutcome]:
        """Prepare claims, all beside one another; returns one outcome for each, by UID. Raises nothing."""
        unique = {claim.uid: claim for claim in claims}
        outcomes = await self._all(unique, undoes=False)
        if self._statuses is not None and not self._is_closed:
            for uid, outcome in outcomes.items():
                if not outcome.error:
                    self._statuses.prepared(unique[uid], outcome.devices)
        return outcomes

    async def unprepare(self, claims: Iterable[Claim]) -> dict[str, JobOutcome]:
        """End claims, also those that are unknown or gone; returns one outcome for each, by UID. Raises nothing.

        Waits for ``released`` for `kdp.dra.claims.releases.UNPREPARE_SECONDS`; what it still owes is repeated.
        """
        unique = {claim.uid: claim for claim in claims}
        if self._statuses is not None:
            for uid in unique:
                self._statuses.forget(uid)
        return await self._all(unique, undoes=True)

    async def close(self, seconds: float) -> None:
        """Let what is going on end, within so many seconds; then give it up. What was only started says so on disk."""
        if self._statuses is not None:
            self._statuses.close()
        self._is_closed = True
        jobs = {*self._preparing.values(), *self._undoing.values(), *self._releases.close()}
        if jobs:
            _, left = await asyncio.wait(jobs, timeout=seconds)
            for job in left:
                job.cancel()
            if left:
                await asyncio.wait(left, timeout=1.0)

    async def _all(self, claims: Mapping[str, Claim], *, undoes: bool) -> dict[str, JobOutcome]:
        outcomes = await asyncio.gather(*(self._joined(claim, undoes=undoes) for claim in claims.values()))
        return dict(zip(claims, outcomes, strict=True))

    async def _joined(self, claim: Claim, *, undoes: bool) -> JobOutcome:
        """Wait for what is going on for a claim, or begin it; it goes on when the caller is cancelled."""
        uid = claim.uid
        if undoes and uid in self._preparing:
            self._preparing[uid].cancel()
            await asyncio.wait({self._preparing[uid]})
        jobs, live = (self._undoing, self._ended) if undoes else (self._preparing, self._begun)
        job = jobs.get(uid)
        if job is None:
            if self._is_closed:
                return JobOutcome(error="the driver is stopping; the kubelet asks again")
            job = jobs[uid] = asyncio.create_task(self._lived(claim, live))
            job.add_done_callback(partial(_forget, jobs, uid))
        finished, _ = await asyncio.wait({job}, timeout=None if undoes else ANSWER_SECONDS)
        if not finished:
            hook = self._hooks.running(claim)
            late = "it is not prepared" if hook is None else f"{hook}() has not returned"
            return JobOutcome(error=f"{late} after {ANSWER_SECONDS:g} s; the kubelet asks again")
        if job.cancelled():
            why = "the driver is stopping" if self._is_closed else "the claim was unprepared meanwhile"
            return JobOutcome(error=f"{why}; the kubelet asks again")
        return job.result()

    async def _lived(self, claim: Claim, live: Callable[[Claim], Awaitable[tuple[Use, ...]]]) -> JobOutcome:
        """Do something for a claim, and tell what has become of it."""
        extra: dict[str, str] = {}
        try:
            check_claim_uid(claim.uid)
            return JobOutcome(devices=await live(claim))
        except KdpError as error:
            text = sentence(error)
            if isinstance(error, RefusedError):
                extra = {"hook": error.hook, "reason": text}
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

    async def _begun(self, claim: Claim) -> tuple[Use, ...]:
        """Prepare a claim when the releases that must come first have succeeded; return what the kubelet is told."""
        until = time.monotonic() + PREPARE_SECONDS
        while True:
            try:
                await self._check_over(claim)
                async with self._locks.claim(claim.uid):
                    return await self._life.prepare(claim)
            except OwedError as error:
                owing = error.owing
            await self._releases.wait(owing, until)

    async def _check_over(self, claim: Claim) -> None:
        """Look whether a claim's release is owed, without its lock: a process may have that while ``released`` runs.

        Raises:
            CheckpointError: The disk does not say.
            OwedError: It is.
        """
        record = await offload(partial(self.store.read, claim.uid))
        if record is not None and record.is_over:
            raise OwedError([record])

    async def _ended(self, claim: Claim) -> tuple[Use, ...]:
        """End a claim, and give its release a moment; return nothing to tell."""
        try:
            await self._check_over(claim)
            async with self._locks.claim(claim.uid):
                owed = await self._life.unprepare(claim)
        except OwedError as error:
            [owed] = error.owing
        if owed is not None:
            await self._releases.settle(owed)
        return ()

    # -- what a spec means later ---------------------------------------------------------------------------------------

    async def look_elsewhere(self) -> bool:
        """Read the claims of other drivers; return whether they are other ones than before."""
        return await offload(self._hooks.look_elsewhere)

    def outdated(self, devices: Sequence[Device]) -> dict[str, tuple[Condition, ...]]:
        """Return the conditions that the allocations of claims cause, by device id. It does not block."""
        given: dict[str, list[Given]] = {}
        for record in self._prepared():
            for use in record.uses:
                given.setdefault(use.device_id, []).append(use.given)
        now = time.monotonic()
        withheld = self._hooks.withheld(self.store.known, devices)
        found: dict[str, tuple[Condition, ...]] = {
            device_id: (HELD.because(str(holding), now),) for device_id, holding in withheld.items()
        }
        for device in devices if given else ():
            looks = (each.outdated(device, now) for each in given.get(device.id, ()))
            if (outdated := next((look for look in looks if look is not None), None)) is not None:
                found[device.id] = (outdated,)
        for device_id, scrub in self._releases.conditions(self.store.known).items():
            found[device_id] = (*found.get(device_id, ()), scrub)
        return found

    def holdings(self) -> dict[str, tuple[str, ...]]:
        """Return the devices that claims have, with the names of the claims. Any thread may call it."""
        found: dict[str, list[str]] = {}
        for record in self.store.known:
            if not record.is_over:
                for use in record.uses:
                    found.setdefault(use.device_id, []).append(record.held.name)
        return {device_id: tuple(dict.fromkeys(names)) for device_id, names in found.items()}

    def _prepared(self) -> list[Record]:
        return [*filter(self._life.is_prepared, self.store.known)]

    async def renew(self) -> None:
        """Write the specs of prepared claims anew where what they mean has changed. Called after each discovery.

        A runtime reads them at each start of a container. What cannot be written is logged, and tried again.
        """
        known = self._hooks.latest
        if known is None:
            return
        meanings = await offload(lambda: {each.claim.uid: self._meaning(each, known) for each in self._prepared()})
        for uid, meaning in meanings.items():
            if self._meanings.get(uid) == meaning:
                continue
            try:
                async with self._locks.claim(uid):
                    await offload(partial(self._life.renew, uid, known))
            except KdpError as error:
                if self._meanings.get(uid) != ():  # a failure that goes on is no news
                    logger.warning("%s: the CDI file of claim %s is outdated: %s", self._driver, uid, sentence(error))
                self.doubts.set(None)
                meanings[uid] = ()
        self._meanings = meanings

    def _meaning(self, record: Record, known: Mapping[str, Device]) -> tuple[object, ...]:
        """Return what a claim's spec is made of that can change: its devices, and what their nodes are."""
        devices = [known[use.device_id] for use in record.uses if use.device_id in known]
        spec = current(record, known, self._host)
        is_there = self._files.has_spec(record.claim.uid)
        return (spec, is_there, *((device.edits, device.identity) for device in devices))

    # -- what was left behind ------------------------------------------------------------------------------------------

    async def recover(self) -> list[str]:
        """Find claims again whose record is lost or broken, by their CDI specs; returns their UIDs. For the start.

        Begins the releases that an earlier process owed.

        Raises:
            CheckpointError: The disk does not take it.
        """
        found = await offload(self._files.known)
        stored = {record.claim.uid for record in self.store.known}
        made: list[str] = []
        for uid in (record.claim.uid for record in found if record.claim.uid not in stored):
            async with self._locks.claim(uid):
                if await offload(partial(self._files.recover, uid)):
                    made.append(uid)
                    logger.warning("%s: claim %s was found again by its CDI spec", self._driver, uid)
        self._take_over(found)
        return made

    async def take_over(self) -> None:
        """Begin the releases that another process of the driver owed and has not finished. Called now and then.

        Raises:
            CheckpointError: The disk does not say what there is.
        """
        self._take_over(await offload(self.store.all))

    def _take_over(self, found: Iterable[Record]) -> None:
        for record in found if not self._is_closed else ():
            if record.is_over:
                self._releases.begin(record)

    async def collect(self, *, grace: float) -> list[str]:
        """Undo claims that are gone from the API for so many seconds; returns their UIDs. Called every now and then.

        A claim that cannot be fetched is not gone. Meant for what the kubelet has forgotten: a claim that it knows is
        unprepared by it, and then there is nothing left to do. Removes unfinished files, too; not only at the start,
        where they are too young.

        Raises:
            CheckpointError: The disk does not say what there is.
        """
        await offload(self._files.remove_drafts)
        # A claim that is over is ended already, in the API or not.
        claims = [record.claim for record in await offload(self._files.known) if not record.is_over]
        uids = {claim.uid for claim in claims}
        self._missing = {uid: at for uid, at in self._missing.items() if uid in uids}
        undone: list[str] = []
        for claim in claims:
            is_gone = await self._is_gone(claim)
            if is_gone is False:
                self._missing.pop(claim.uid, None)
            if not is_gone:
                continue
            since = self._missing.setdefault(claim.uid, time.monotonic())
            if claim.uid in self._preparing or time.monotonic() - since < grace:
                continue
            name = f"{claim.namespace}/{claim.name} ({claim.uid})"
            text = "is gone, but the kubelet has not unprepared it; kdp undoes it"
            logger.warning("%s: claim %s %s", self._driver, name, text)
            outcomes = await self.unprepare([claim])
            if not outcomes[claim.uid].error:
                undone.append(claim.uid)
        return undone

    async def _is_gone(self, claim: Claim) -> bool | None:
        """Return whether a claim has left the API; None: nobody knows."""
        try:
            item = await self._life.fetch(claim)
        except ApiError as error:
            return True if error.status == 404 else None
        return bool(item["metadata"]["uid"] != claim.uid)


def _forget(jobs: dict[str, asyncio.Task[JobOutcome]], uid: str, job: asyncio.Task[JobOutcome]) -> None:
    if jobs.get(uid) is job:
        del jobs[uid]
