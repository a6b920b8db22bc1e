"""`ClaimLifecycle`: one claim's life, from the first Prepare until nothing of it is left. Sans-IO.

`prepare` and `unprepare` are generators: steps come out, their results go in, and an answer is returned (`steps`). Both
begin with what the disk says, so that a step that fails, a killed process and another process are one case. A claim is

::

                 Start                     Complete
      ABSENT ───────────────► STARTED ───────────────► PREPARED
        ▲                      │    ▲                      │
        └─────── Forget ───────┘    └───── Save, reboot ───┘

* STARTED: its hardware may be in any state; Prepare does all of it again, Unprepare undoes all of it.
* Where no hook has a part in it, `Commit` leads from ABSENT to PREPARED, and `Forget` back.
* After a reboot hardware is as if nothing had been: a record of another boot counts as started, with an empty state.

Invariants, each with a mutant in the tests that breaks it:

1. ``allocate`` is called only for a part that a record on the disk names as started, in this boot.
2. What is prepared for the allocation that the claim has is not touched: same answer, no hook, its spec restored.
3. Before anything is done for another allocation of the claim, all that the old one got was undone.
4. "Complete" is saved, and the claim answered, only when every part was allocated in this boot.
5. ``released`` is called only while the record says "started", and not for a part that the record says is released.
6. A claim is forgotten only when ``released`` was called for each of its parts.
7. ``allocate`` gets the state that was saved of its part in this boot, unless that was released since.
8. ``released`` is called only after `AwaitAllocate`: no thread of an ``allocate`` runs beside it.
9. ``released`` has returned once for a part, whatever fails after it; only a crash or a hook that raises repeats it.

Source: DRA contract sections 2.3, 2.4, 3.4.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import attrs

from ...model.devices import Device
from . import steps
from .cdi_specs import Rendered, spec_of
from .checkpoint import Record, SavedAnswer, SavedPart
from .parameters import Declared
from .plan import ClaimPlan, plan_of, result_keys

if TYPE_CHECKING:
    from ...model.claims import Claim


class ClaimState(enum.Enum):
    """Where a claim stands, by what is on the disk."""

    ABSENT = "absent"
    STARTED = "started"
    PREPARED = "prepared"


@final
@attrs.frozen(kw_only=True)
class ClaimLifecycle:
    """What the claims of one driver live through.

    Attributes:
        driver: The driver's name.
        pool: The pool's name.
        boot_id: Which boot of the node this is; "": unknown, so that none is told from another.
        allocates: Whether a step between the first and the last changes anything: ``allocate`` or a metadata file.
        releases: Whether the backend has a hook ``released``.
        resource_of: Returns a device's extended resource.
        declared: The backend's ``config``.
    """

    driver: str
    pool: str
    boot_id: str
    allocates: bool
    releases: bool
    resource_of: Callable[[Device], str]
    declared: Declared

    def state_of(self, record: Record | None) -> ClaimState:
        """Return where a claim stands that has this record."""
        if record is None:
            return ClaimState.ABSENT
        is_prepared = record.is_complete and self._is_this_boot(record)
        return ClaimState.PREPARED if is_prepared else ClaimState.STARTED

    def prepare(self, claim: Claim) -> steps.Run[tuple[SavedAnswer, ...]]:
        """Prepare a claim, and return what the kubelet is told.

        Raises:
            ClaimError: It asks for what cannot be given; a sentence for its author.
        """
        record = yield from steps.Read(claim)
        item = yield from steps.Fetch(claim, is_needed=self.state_of(record) is not ClaimState.PREPARED)
        if item is not None and record is not None and result_keys(item, claim, self.driver) != record.keys:
            yield from self._undo(record)  # allocated anew, and nobody has told us that the old one is over
            record = None
        if record is not None and self.state_of(record) is ClaimState.PREPARED:
            yield from steps.Restore(claim, record)
            return record.devices
        assert item is not None  # it was needed, and the step fails without it
        plan = yield from self._plan(claim, item)
        return (yield from self._give(plan, record)) if plan.parts else ()

    def unprepare(self, claim: Claim) -> steps.Run[tuple[SavedAnswer, ...]]:
        """Undo a claim, also one that is unknown; return nothing to tell."""
        record = yield from steps.Read(claim)
        if record is None:
            yield from steps.Clear(claim)
        else:
            yield from self._undo(record)
        return ()

    def _is_this_boot(self, record: Record) -> bool:
        return record.boot_id == self.boot_id

    def _plan(self, claim: Claim, item: Mapping[str, Any]) -> steps.Run[ClaimPlan]:
        devices: Mapping[str, Device] = {}
        if result_keys(item, claim, self.driver):
            devices = yield from steps.Discover(claim)
        return plan_of(
            item,
            claim,
            driver=self.driver,
            pool=self.pool,
            devices=devices,
            resource_of=self.resource_of,
            declared=self.declared,
        )

    def _give(self, plan: ClaimPlan, before: Record | None) -> steps.Run[tuple[SavedAnswer, ...]]:
        """Prepare what is planned; ``before`` is what an earlier try has left of it."""
        record = Record(
            claim=plan.claim,
            is_complete=False,
            boot_id=self.boot_id,
            parts=self._parts(plan, before),
            config=plan.config,
            pod_claim=plan.pod_claim,
            more={} if before is None else before.more,
        )
        if not self.allocates:
            record = yield from steps.Commit(plan.claim, plan, record)
            return record.devices
        mounts = yield from steps.Start(plan.claim, plan, record)
        rendered: list[Rendered] = []
        for position, saved in enumerate(record.parts):
            given, state = yield from steps.Allocate(plan.claim, saved, plan.parameters, mounts.get(saved.part))
            rendered.append(given)
            if state != saved.state:
                record = record.with_part(position, attrs.evolve(saved, state=state))
                if position + 1 < len(record.parts):  # the last one goes with "complete"
                    yield from steps.Save(plan.claim, record)
        record = self.completed(plan, record, rendered)
        yield from steps.Complete(plan.claim, plan, record)
        return record.devices

    def _parts(self, plan: ClaimPlan, before: Record | None) -> tuple[SavedPart, ...]:
        states: dict[Any, Mapping[str, Any]] = {}
        if before is not None and self._is_this_boot(before):
            states = {saved.part: saved.state for saved in before.parts if not saved.is_released}
        return tuple(SavedPart(part=part, state=states.get(part, {})) for part in plan.parts)

    def completed(self, plan: ClaimPlan, record: Record, rendered: Sequence[Rendered]) -> Record:
        """Return the record of a claim whose parts were all rendered, with its CDI spec."""
        spec = spec_of(self.driver, plan.claim, plan.parts, [each for given in rendered for each in given.devices])
        answers = tuple(answer for given in rendered for answer in given.answers)
        saved = None if spec is None else spec.as_json()
        return attrs.evolve(record, is_complete=True, devices=answers, spec=saved)

    def _undo(self, record: Record) -> steps.Run[None]:
        claim = record.claim
        yield from steps.AwaitAllocate(claim)
        if self.releases and record.parts:
            if record.is_complete:
                record = attrs.evolve(record, is_complete=False)
                yield from steps.Save(claim, record)
            for position, saved in enumerate(record.parts):
                if not saved.is_released:
                    released = record.with_part(position, attrs.evolve(saved, is_released=True))
                    yield from steps.Release(claim, saved, released)
                    record = released
        yield from steps.Forget(claim)
