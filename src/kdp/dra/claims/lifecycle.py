"""`ClaimLifecycle`: one claim's life, from the first Prepare until nothing of it is left.

`prepare` and `unprepare` begin with what the disk says, so that a step that fails, a killed process and another process
are one case: nothing of a life is kept in memory. A claim is

::

                 _start                   _complete
      ABSENT ───────────────► STARTED ───────────────► PREPARED
        ▲                      │    ▲                      │
        └────── _forget ───────┘    └──── _save, reboot ───┘

* STARTED: its hardware may be in any state; Prepare does all of it again, Unprepare undoes all of it.
* Where no hook has a part in it, `_commit` leads from ABSENT to PREPARED, and `_forget` back.
* After a reboot hardware is as if nothing had been: a record of another boot counts as started, with an empty state.

Invariants, which tests hold against lives that end at each step:

1. ``allocate`` is called only for a part that a record on the disk names as started, in this boot.
2. What is prepared for the allocation that the claim has is not touched: same answer, no hook, its spec restored.
3. Before anything is done for another allocation of the claim, all that the old one got was undone.
4. "Complete" is saved, and the claim answered, only when every part was allocated in this boot.
5. ``released`` is called only while the record says "started", and not for a part that the record says is released.
6. A claim is forgotten only when ``released`` was called for each of its parts.
7. ``allocate`` gets the state that was saved of its part in this boot, unless that was released since.
8. ``released`` is called only when no thread of an ``allocate`` of the claim runs.
9. ``released`` has returned once for a part, whatever fails after it; only a crash or a hook that raises repeats it.

Source: DRA contract sections 2.3, 2.4, 3.4.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import attrs

from ...cluster.api import ApiError, ClusterApi
from ...concurrency.threads import offload
from ...errors import CdiWriteError, CheckpointError
from ...model.conditions import Condition
from ...supervision.backend_validation import class_of
from ...supervision.conditions import being_scrubbed
from ...supervision.hooks import check_state
from .cdi_specs import check_current, spec_of
from .disk import ClaimFiles
from .hooks import ClaimHooks
from .plan import check_free, plan_of, result_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...cdi import CdiDevice
    from ...concurrency.history import History  # noqa: TC004 - late: few drivers pay for it
    from ...model.claims import Claim
    from ...model.devices import Device
    from ...model.edits import Mount
    from .checkpoint import Record, Use
    from .parameters import Parameters

logger = logging.getLogger(__name__)

FETCH_SECONDS = 8.0
"""For the claim from the API; the kubelet gives up after 45 s, and a pod's author should know sooner."""


@attrs.frozen(kw_only=True)
class ClaimLifecycle:
    """What the claims of one driver live through. asyncio only; the caller has the claim's lock.

    Attributes:
        driver: The driver's name.
        pool: The pool's name.
        boot_id: Which boot of the node this is; "": unknown, so that none is told from another.
        api: The API server.
        files: The disk.
        hooks: The backend.
        describes: Whether containers get a file that describes their devices.
        scrubs: Whether a device is unhealthy while ``released`` fails for the claim that had it.
        history: Takes what becomes of claims; None: nobody reads it.
        unscrubbed: The condition of a claim's devices while ``released`` fails for it, by the claim's UID.
    """

    driver: str
    pool: str
    boot_id: str
    api: ClusterApi
    files: ClaimFiles
    hooks: ClaimHooks
    describes: bool = False
    scrubs: bool = False
    history: History | None = None
    unscrubbed: dict[str, Condition] = attrs.field(factory=dict[str, Condition])

    def is_prepared(self, record: Record | None) -> bool:
        """Return whether a claim is prepared that has this record."""
        return record is not None and record.is_complete and record.boot_id == self.boot_id

    # -- lives ---------------------------------------------------------------------------------------------------------

    async def prepare(self, claim: Claim) -> tuple[Use, ...]:
        """Prepare a claim, and return what the kubelet is told.

        Raises:
            ApiError: The API server did not say what the claim has.
            ClaimError: It asks for what cannot be given; a sentence for its author.
            KdpError: A step failed.
        """
        before = await self._read(claim)
        try:
            item = await self.fetch(claim)
        except ApiError as error:
            if before is None or not self.is_prepared(before) or error.status == 404:
                raise
            await self._restore(before)  # what is prepared needs no API server
            return before.uses
        if before is not None and result_keys(item, claim, self.driver) != before.keys:
            await self._undo(before)  # allocated anew, and nobody has told us that the old one is over
            before = None
        if before is not None and self.is_prepared(before):
            await self._restore(before)
            return before.uses
        record, parameters = plan_of(
            item,
            claim,
            driver=self.driver,
            pool=self.pool,
            devices=await self.hooks.devices() if result_keys(item, claim, self.driver) else {},
            backend=self.hooks.backend,
        )
        if not record.parts:
            return ()
        record = await self._given(self._begun(record, before), parameters)
        self._tell("prepared", claim, record.held.devices)
        return record.uses

    async def unprepare(self, claim: Claim) -> tuple[Use, ...]:
        """Undo a claim, also one that is unknown; return nothing to tell.

        Raises:
            KdpError: A step failed.
        """
        record = await self._read(claim)
        if record is None:
            await self._clear(claim)
        else:
            await self._undo(record)
        return ()

    def _begun(self, record: Record, before: Record | None) -> Record:
        """Return a new record with what an earlier try has left of it."""
        states: dict[object, Mapping[str, Any]] = {}
        if before is not None and before.boot_id == self.boot_id:
            states = {part.key: part.state for part in before.parts if not part.is_released}
        parts = tuple(
            attrs.evolve(part, state=states.get(part.key, {}), uses=tuple(map(self.hooks.reaching, part.uses)))
            for part in record.parts
        )
        return attrs.evolve(
            record,
            boot_id=self.boot_id,
            parts=parts,
            class_name=class_of(self.hooks.backend),
            more={} if before is None else before.more,
        )

    async def _given(self, record: Record, parameters: Parameters) -> Record:
        """Prepare a claim that is begun; return its complete record."""
        if not self.hooks.overridden("allocate") and not self.describes:
            return await self._commit(record)
        mounts = await self._start(record)
        devices: list[CdiDevice] = []
        for position, part in enumerate(record.parts):
            config = parameters.of_request(part.request)
            answered, found = await self.hooks.allocate(record.claim, part, config, mounts.get(position))
            devices += found
            record = record.with_part(position, answered)
            if answered.state != part.state and position + 1 < len(record.parts):  # the last goes with "complete"
                await self._save(record)
        record = self._completed(record, devices)
        await self._complete(record)
        return record

    def _completed(self, record: Record, devices: Sequence[CdiDevice]) -> Record:
        """Return the record of a claim whose parts were all rendered, with its CDI spec."""
        spec = spec_of(self.driver, record, devices)
        return attrs.evolve(record, is_complete=True, spec=None if spec is None else spec.as_json())

    async def _undo(self, record: Record) -> None:
        await self.hooks.await_allocate(record.claim)
        if self.hooks.overridden("released") and record.parts:
            if record.is_complete:
                record = attrs.evolve(record, is_complete=False)
                await self._save(record)
            for position, part in enumerate(record.parts):
                if not part.is_released:
                    record = await self._released(record, position)
        await self._forget(record.claim)

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _read(self, claim: Claim) -> Record | None:
        return await offload(lambda: self.files.read(claim.uid))

    async def fetch(self, claim: Claim) -> Mapping[str, Any]:
        """Return a claim as the API server has it.

        Raises:
            ApiError: It has none, or did not answer within `FETCH_SECONDS`.
        """
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                return await self.api.claim(claim.namespace, claim.name)
        except TimeoutError:
            raise ApiError(
                f"the API server did not give claim {claim.namespace}/{claim.name} within {FETCH_SECONDS:g} s"
            ) from None

    async def _restore(self, record: Record) -> None:
        """Have the CDI spec of a prepared claim on the disk again."""
        known = self.hooks.latest
        if known is not None or not await offload(lambda: self.files.has_spec(record.claim.uid)):
            await offload(lambda: self.files.write_spec(record, known or {}))
        check_current(record, known or {})

    async def _start(self, record: Record) -> Mapping[int, Mount]:
        """Save that a claim is started, unless another has one of its devices; return its metadata files' mounts."""

        def begin() -> None:
            self._check_free(record)
            self.files.store.write(record)

        async with self.files.locks.whole():
            await offload(begin)
        return await self._described(record)

    def _check_free(self, record: Record) -> None:
        """Check that no other claim has one of a claim's devices, under whatever name, by whatever driver. Blocks.

        Raises:
            ClaimError: One has.
        """
        known = self.files.known()
        self.hooks.look_elsewhere()
        check_free(record, known, self.hooks.withheld(known, of=record.claim))

    async def _save(self, record: Record) -> None:
        await offload(lambda: self.files.store.write(record))

    async def _complete(self, record: Record) -> None:
        """Write a claim's CDI spec, and then its record, which says that it is complete."""
        if any(use.network for use in record.uses):
            await self._described(record)
        known = self.hooks.latest or {}
        await offload(lambda: self.files.write(record, known))

    async def _commit(self, record: Record) -> Record:
        """Check, render, and complete at once a claim that no hook has a part in; return the complete record.

        Nothing can be left but a spec, which says whose it is (`ClaimFiles.read`).
        """
        known = await self.hooks.devices()

        def commit() -> Record:
            self._check_free(record)
            complete = self._rendered(record, known, {})
            try:
                # After a loss of power no container has a device: only a hook `released` must know of it then.
                self.files.write(complete, known, must_last=self.hooks.overridden("released"))
            except CheckpointError:
                with suppress(CdiWriteError):
                    self.files.remove_spec(record.claim.uid)
                raise
            return complete

        async with self.files.locks.whole():
            return await offload(commit)

    def _rendered(self, record: Record, known: Mapping[str, Device], mounts: Mapping[int, Mount]) -> Record:
        """Return the complete record of a claim whose devices say it all themselves."""
        devices: list[CdiDevice] = []
        for position, part in enumerate(record.parts):
            answered, found = self.hooks.rendered(record.claim, part, known, mounts.get(position))
            devices += found
            record = record.with_part(position, answered)
        return self._completed(record, devices)

    async def _released(self, record: Record, position: int) -> Record:
        """Call ``released`` for a part, and have the claim's record say so as soon as it has returned; return that.

        What is saved afterwards is written first: once the hook has returned, nothing may fail that repeats it.
        """
        part = record.parts[position]
        released = record.with_part(position, attrs.evolve(part, is_released=True))
        draft = await offload(lambda: self.files.store.draft(released))
        state = check_state(part.state)
        try:
            await self.hooks.release(record, part, state)
        except BaseException:
            await offload(draft.discard)
            if state != part.state:  # what is done need not be done again
                begun = record.with_part(position, attrs.evolve(part, state=check_state(state)))
                await offload(lambda: self.files.store.write(begun, must_last=False))
            if self.scrubs:
                since = being_scrubbed(time.strftime("since %H:%M:%S"), time.monotonic())
                self.unscrubbed.setdefault(record.claim.uid, since)
                self.hooks.judge_again()
            raise
        await offload(lambda: self.files.store.commit(draft, released))
        return released

    async def _forget(self, claim: Claim) -> None:
        """Remove all of a claim's files, its record last."""
        await offload(lambda: self.files.remove(claim.uid))
        self.unscrubbed.pop(claim.uid, None)
        self.hooks.judge_again()
        self._tell("unprepared", claim)

    async def _clear(self, claim: Claim) -> None:
        """Remove the files that a claim may have left of which nothing is known."""
        if await offload(lambda: self.files.remove(claim.uid)):
            name = f"{claim.namespace}/{claim.name} ({claim.uid})"
            text = "is unprepared, but its devices are unknown, so released() was not called"
            logger.warning("%s: claim %s %s", self.driver, name, text)

    async def _described(self, record: Record) -> Mapping[int, Mount]:
        """Write a claim's metadata files, if it is to have some, and return their mounts."""
        if not self.describes:
            return {}
        known = await self.hooks.devices()
        if any(use.device_id not in known for use in record.uses):
            return {}  # what has just gone is refused in a moment
        return await offload(lambda: self.files.metadata.write(record, known))

    def _tell(self, what: Literal["prepared", "unprepared"], claim: Claim, ids: tuple[str, ...] = ()) -> None:
        """Log what has become of a claim."""
        name, devices = f"{claim.namespace}/{claim.name}", f": {', '.join(ids)}" if ids else ""
        logger.info("%s: claim %s (%s) is %s%s", self.driver, name, claim.uid, what, devices)
        if self.history is not None:
            self.history.add(what, self.driver, f"claim {name}", ids)

    # -- renewal -------------------------------------------------------------------------------------------------------

    def renew(self, uid: str, known: Mapping[str, Device]) -> None:
        """Write the CDI spec of a prepared claim anew, by the devices that there are now. Blocks.

        Raises:
            KdpError: The disk does not take it.
        """
        record = self.files.store.read(uid)
        if record is None or not self.is_prepared(record):
            return  # another process was quicker
        is_same = all(
            use.device_id in known and not use.given.is_other_hardware(known[use.device_id]) for use in record.uses
        )
        if is_same and not self.hooks.overridden("allocate"):
            mounts = self.files.metadata.write(record, known) if self.describes else {}
            renewed = self._rendered(record, known, mounts)
            before = iter(record.uses)  # what was given to the containers stays
            for position, part in enumerate(renewed.parts):
                uses = tuple(attrs.evolve(use, given=next(before).given) for use in part.uses)
                renewed = renewed.with_part(position, attrs.evolve(part, uses=uses))
            if renewed != record:
                self.files.store.write(renewed, must_last=False)
                record = renewed
        self.files.write_spec(record, known)
