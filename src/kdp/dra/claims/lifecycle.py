"""`ClaimLifecycle`: one claim's life, from the first Prepare until nothing of it is left.

`prepare`, `unprepare`, and `release` begin with what the disk says, so that a step that fails, a killed process and
another process are one case. A claim is

::

                 _start                   _complete
      ABSENT ───────────────► STARTED ───────────────► PREPARED
        ▲                      │    ▲                      │
        │                      │    └─────── reboot ───────┤
        │                 _save│                           │_save
        └────── release ───── OWED ◄───────────────────────┘

* STARTED: its hardware may be in any state; Prepare does all of it again.
* OWED: no pod has the claim any more, and ``released`` must be called for its parts. Unprepare leads here, and so does
  a Prepare of a claim that has another allocation now. `release` is repeated until it succeeds; until then Prepare
  raises `OwedError`.
* If the backend has no ``released``, and no thread of ``allocate`` or ``prepare_container`` runs, Unprepare forgets the
  claim.
* Where no hook has a part in it, `_commit` leads from ABSENT to PREPARED.
* After a reboot hardware is as if nothing had been: a record of another boot has an empty state, and a prepared one
  counts as started.

Invariants, which tests hold against lives that end at each step:

1. ``allocate`` is called only for a part that a record on the disk names as started, in this boot.
2. What is prepared for the allocation that the claim has is not touched: same answer, no hook, its spec restored.
3. Before anything is done for another allocation of the claim, or after its Unprepare, all that the old one got was
   undone.
4. "Complete" is saved, and the claim answered, only when every part was allocated in this boot.
5. ``released`` is called only while the record says "owed", and not for a part that the record says is released.
6. A claim is forgotten only when ``released`` was called for each of its parts.
7. ``allocate`` and ``released`` get the state that was saved of their part in this boot, ``allocate`` only if that
   was not released since.
8. ``released`` is called only when no thread of an ``allocate`` or ``prepare_container`` of the claim runs.
9. ``released`` has returned once for a part, whatever fails after it; only a crash or a hook that raises repeats it.
10. Unprepare succeeds without the backend: it only saves that the release is owed.
11. ``prepare_container`` follows ``allocate`` of all parts, also where a Prepare is repeated, because ``allocate`` may
    undo its effect. It is not called after the claim was complete in this boot: a pod may run on it. If the record is
    lost, the CDI spec proves that it was.

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
from ...errors import CdiWriteError, CheckpointError, HookTimeoutError, InvalidValueError, KdpError
from ...supervision.backend_validation import class_of
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

SETTLE_SECONDS = 20.0
"""For a hook of an earlier Prepare that still runs, because the next one gets its state; see `FETCH_SECONDS`."""

FETCH_SECONDS = 8.0
"""For the claim from the API; the kubelet gives up after 45 s, and a pod's author should know sooner."""


class OwedError(Exception):
    """A claim cannot be prepared before other claims, or its own former life, are released.

    Args:
        owing: The records of the claims whose release is owed.
    """

    def __init__(self, owing: Sequence[Record]) -> None:
        super().__init__(owing)
        self.owing = owing


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
        history: Takes what becomes of claims; None: nobody reads it.
    """

    driver: str
    pool: str
    boot_id: str
    api: ClusterApi
    files: ClaimFiles
    hooks: ClaimHooks
    describes: bool = False
    history: History | None = None

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
            OwedError: A release must come first; call this again after it.
        """
        before = await self._read(claim)
        if before is not None and before.is_over:
            raise OwedError([before])
        if before is not None and not self.is_prepared(before):
            before = await self.hooks.settled(before, deadline=SETTLE_SECONDS)
        try:
            item = await self.fetch(claim)
        except ApiError as error:
            if before is None or not self.is_prepared(before) or error.status == 404:
                raise
            await self._restore(before)  # what is prepared needs no API server
            return before.uses
        if before is not None and result_keys(item, claim, self.driver) != before.keys:
            owed = await self._end(before)  # allocated anew, and nobody has told us that the old one is over
            if owed is not None:
                raise OwedError([owed])
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

    async def unprepare(self, claim: Claim) -> Record | None:
        """End a claim, also one that is unknown; return its record if its release is owed.

        Raises:
            KdpError: The disk failed.
        """
        record = await self._read(claim)
        if record is None:
            await self._clear(claim)
            return None
        return await self._end(record)

    async def release(self, claim: Claim) -> None:
        """Call ``released`` for each part of a claim whose release is owed, and forget the claim.

        Does nothing if no release is owed, as when another process was quicker. Waits for a thread of ``allocate``
        or ``prepare_container``, however long it runs. A cancelled call can be repeated.

        Raises:
            KdpError: A step failed; call this again later.
        """
        record = await self._read(claim)
        if record is None or not record.is_over:
            return
        await self._hide(claim)
        record = await self.hooks.settled(record)
        if self.hooks.overridden("released"):
            record = self._of_this_boot(record)
            for position, part in enumerate(record.parts):
                if not part.is_released:
                    record = await self._released(record, position)
        await self._forget(claim)

    def _begun(self, record: Record, before: Record | None) -> Record:
        """Return a new record with what an earlier try has left of it.

        It has a CDI spec if that alone tells of the claim: then the claim was complete, and a pod may run on it.
        """
        states: dict[object, Mapping[str, Any]] = {}
        spec: Mapping[str, Any] | None = None
        if before is not None and before.boot_id == self.boot_id:
            states = {part.key: part.state for part in before.parts if not part.is_released}
        if before is not None and not before.is_complete and before.boot_id in ("", self.boot_id):
            spec = before.spec
        parts = tuple(
            attrs.evolve(part, state=states.get(part.key, {}), uses=tuple(map(self.hooks.reaching, part.uses)))
            for part in record.parts
        )
        return attrs.evolve(
            record,
            boot_id=self.boot_id,
            parts=parts,
            spec=spec,
            class_name=class_of(self.hooks.backend),
            more={} if before is None else before.more,
        )

    async def _given(self, record: Record, parameters: Parameters) -> Record:
        """Prepare a claim that is begun; return its complete record."""
        pre_starts = self.hooks.overridden("prepare_container")
        if not (self.hooks.overridden("allocate") or pre_starts or self.describes):
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
        if pre_starts and record.spec is None:
            for position, part in enumerate(record.parts):
                record = await self._pre_started(record, position, parameters.of_request(part.request))
        record = self._completed(record, devices)
        await self._complete(record)
        return record

    async def _pre_started(self, record: Record, position: int, config: object | None) -> Record:
        """Call ``prepare_container`` for a part; return the record with the state that it leaves.

        The protocol has no moment before the start of a container, and repeats Prepare while one runs.
        """
        part = record.parts[position]
        state = check_state(part.state)
        try:
            await self.hooks.prepare_container(record.claim, part, config, state)
        except HookTimeoutError:  # its thread may still write to the state
            raise
        except KdpError:
            self.hooks.note_state(record.claim, part, state)  # the disk may not take it
            with suppress(InvalidValueError):
                if state != part.state:  # `released` must undo its effect
                    begun = attrs.evolve(part, state=check_state(state))
                    await self._save(record.with_part(position, begun))
            raise
        record = record.with_part(position, attrs.evolve(part, state=check_state(state)))
        if state != part.state and position + 1 < len(record.parts):  # the last goes with "complete"
            await self._save(record)
        return record

    def _completed(self, record: Record, devices: Sequence[CdiDevice]) -> Record:
        """Return a claim's record as complete, with its CDI spec.

        Raises:
            ClaimError: Its requests contradict one another.
        """
        spec = spec_of(self.driver, record, devices, joined_env=self.hooks.backend.joined_env)
        return attrs.evolve(record, is_complete=True, spec=None if spec is None else spec.as_json())

    async def _end(self, record: Record) -> Record | None:
        """End a claim that has a record; return its record if its release is owed."""
        owes = self.hooks.running(record.claim) or (self.hooks.overridden("released") and record.owed)
        if not owes:
            await self._forget(record.claim)
            self._tell("unprepared", record.claim)
            return None
        if not record.is_over:
            record = attrs.evolve(record, is_complete=False, over_since=time.time())
            await self._save(record)
            self._tell("unprepared", record.claim)
        return record

    def _of_this_boot(self, record: Record) -> Record:
        """Return a record without the states of another boot."""
        if record.boot_id == self.boot_id:
            return record
        parts = tuple(part if part.is_released else attrs.evolve(part, state={}) for part in record.parts)
        return attrs.evolve(record, boot_id=self.boot_id, parts=parts)

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
            OwedError: One has had it, and must be released first.
        """
        known = self.files.known()
        self.hooks.look_elsewhere()
        owing = check_free(record, known, self.hooks.withheld(known, of=record.claim))
        if owing:
            raise OwedError(owing)

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

        What is saved afterwards is written first. If the disk fails although that is written, the hook's success is
        remembered, so that only the save is repeated.
        """
        part = record.parts[position]
        released = record.with_part(position, attrs.evolve(part, is_released=True))
        draft = await offload(lambda: self.files.store.draft(released))
        state = check_state(part.state)
        try:
            await self.hooks.release(record, part, state)
        except BaseException:
            self.hooks.note_state(record.claim, part, state)  # the disk may not take it
            await offload(draft.discard)
            if state != part.state:  # what is done need not be done again
                begun = record.with_part(position, attrs.evolve(part, state=check_state(state)))
                await offload(lambda: self.files.store.write(begun, must_last=False))
            raise
        self.hooks.note_released(record.claim, part, is_saved=False)
        await offload(lambda: self.files.store.commit(draft, released))
        self.hooks.note_released(record.claim, part, is_saved=True)
        return released

    async def _forget(self, claim: Claim) -> None:
        """Remove all of a claim's files, its record last."""
        await offload(lambda: self.files.remove(claim.uid))
        self.hooks.forget(claim)

    async def _hide(self, claim: Claim) -> None:
        """Remove what containers get of a claim."""
        await offload(lambda: self.files.hide(claim.uid))

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
