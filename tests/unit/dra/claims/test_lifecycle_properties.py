"""A claim lives random lives; every invariant of the lifecycle's head holds.

Each step can fail before or after it took effect, which is also what a killed process leaves; nodes reboot, and the
scheduler allocates anew without telling.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

import kdp
from kdp.dra.claims import lifecycle as real
from kdp.dra.claims import steps
from kdp.dra.claims.cdi_specs import Rendered
from kdp.dra.claims.checkpoint import Record, SavedAnswer
from kdp.dra.claims.plan import ClaimPart

from ...mutants import holds, live
from .claim_objects import DRIVER, POOL, claim, claim_object, result

CLAIM = claim()
DEVICES = {name: kdp.Device(id=name) for name in ("w0", "w1", "w2")}
ALLOCATIONS = st.lists(st.sampled_from(sorted(DEVICES)), min_size=1, max_size=2, unique=True)
FAILURES_ALL = [(number, when) for number in range(10) for when in ("before", "after")]
"""At which step a run ends, and whether the step has taken effect."""
FAILURES = st.none() | st.sampled_from(FAILURES_ALL)

STEPS = tuple(kind.__name__ for kind in steps.Step.__subclasses__())


class FailedError(Exception):
    """A step failed."""


class Life(RuleBasedStateMachine):
    """One claim on one node. The disk is a record, hardware is a set of parts."""

    module: ClassVar[ModuleType] = real
    allocates: ClassVar[bool] = True
    hits: ClassVar[Counter[tuple[str, str]]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.boot = 0
        self.record: Record | None = None
        self.has_spec = False
        self.allocated = ["w0", "w1"]
        self.given: set[ClaimPart] = set()
        self.owed: set[ClaimPart] = set()
        self.states: dict[ClaimPart, Mapping[str, Any]] = {}
        self.has_awaited = False
        self.answers_api = True
        self.released_once: set[ClaimPart] = set()

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule(devices=ALLOCATIONS)
    def allocate_anew(self, devices: list[str]) -> None:
        self.allocated = devices

    @rule()
    def reboot(self) -> None:
        self.boot += 1
        self.has_spec = False
        self.given.clear()
        self.states.clear()

    @rule()
    def wipe_specs(self) -> None:
        self.has_spec = False

    @rule(failure=FAILURES, answers_api=st.booleans())
    def prepare(self, failure: tuple[int, str] | None, answers_api: bool) -> None:
        self.answers_api = answers_api
        before = self.record
        is_prepared = before is not None and before.is_complete and before.boot_id == f"boot-{self.boot}"
        is_same = before is not None and before.keys == self.keys
        answer, taken = self.lived(self.lifecycle.prepare(CLAIM), failure)
        if is_prepared and (is_same or not answers_api):
            assert before is not None
            holds(2, set(taken) <= {"Read", "Fetch", "Restore"}, f"a prepared claim is touched: {taken}")
            holds(2, answer in (None, before.devices), f"{answer} is told, and {before.devices} was")
            holds(2, answer is None or self.has_spec, "the spec is missing")
        if answer is not None:
            assert self.record is not None
            parts = {saved.part for saved in self.record.parts}
            holds(4, parts <= self.given, f"answered, and allocated is {self.given}")

    @rule(failure=FAILURES)
    def unprepare(self, failure: tuple[int, str] | None) -> None:
        answer, _ = self.lived(self.lifecycle.unprepare(CLAIM), failure)
        assert answer is None or (self.record is None and not self.owed)

    # -- the steps -----------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> frozenset[tuple[str, str, str, str]]:
        return frozenset((name, POOL, device, "") for name, device in zip("ab", self.allocated, strict=False))

    @property
    def lifecycle(self) -> real.ClaimLifecycle:
        made: real.ClaimLifecycle = self.module.ClaimLifecycle(
            driver=DRIVER,
            pool=POOL,
            boot_id=f"boot-{self.boot}",
            allocates=self.allocates,
            releases=True,
            resource_of=lambda _: "example.com/widget",
            declared=None,
        )
        return made

    def lived(self, run: steps.Run[Any], failure: tuple[int, str] | None) -> tuple[Any, list[str]]:
        """Take the steps of a run; returns what it answered, None: it failed; and which steps were taken."""
        number, when = failure or (-1, "")
        self.has_awaited = False
        taken: list[str] = []
        result: Any = None
        while True:
            try:
                step = run.send(result)
            except StopIteration as end:
                return end.value, taken
            name = type(step).__name__
            ends = len(taken) == number
            self.hits[name, when if ends else "done"] += 1
            taken.append(name)
            try:
                if ends and when == "before":
                    raise FailedError
                result = getattr(self, f"take_{name}")(step)
                if ends:
                    raise FailedError
            except FailedError:
                run.close()
                return None, taken

    def take_Read(self, _: steps.Read) -> Record | None:
        return self.record

    def take_Fetch(self, step: steps.Fetch) -> Mapping[str, Any] | None:
        if self.answers_api:
            return claim_object(
                CLAIM, [result(device, name) for name, device in zip("ab", self.allocated, strict=False)]
            )
        if step.is_needed:
            raise FailedError
        return None

    def take_Discover(self, _: steps.Discover) -> Mapping[str, kdp.Device]:
        return DEVICES

    def take_Restore(self, _: steps.Restore) -> None:
        self.has_spec = True

    def take_Start(self, step: steps.Start) -> Mapping[ClaimPart, Any]:
        parts = {saved.part for saved in step.record.parts}
        holds(3, self.owed <= parts, f"{self.owed - parts} of another allocation is left")
        for saved in step.record.parts:
            expected = self.states.get(saved.part, {})
            holds(7, saved.state == expected, f"{saved.part.request} starts with {saved.state} and not {expected}")
        self.owed |= parts
        self.released_once -= parts  # they count as touched from now on
        self.write(step.record)
        return {}

    def take_Allocate(self, step: steps.Allocate) -> tuple[Rendered, Mapping[str, Any]]:
        part, record = step.saved.part, self.record
        is_started = record is not None and not record.is_complete and record.boot_id == f"boot-{self.boot}"
        holds(1, is_started and record and part in {saved.part for saved in record.parts}, f"the disk has {record}")
        self.has_awaited = False
        self.released_once.discard(part)
        self.given.add(part)
        self.owed.add(part)
        state = step.saved.state
        left = {"times": state.get("times", 0) + 1} if part.request == "a" or len(self.allocated) == 1 else state
        return rendered(part), left

    def take_Save(self, step: steps.Save) -> None:
        self.write(step.record)

    def take_Complete(self, step: steps.Complete) -> None:
        self.has_spec = True
        self.write(step.record)

    def take_Commit(self, step: steps.Commit) -> Record:
        parts = {saved.part for saved in step.record.parts}
        holds(3, self.owed <= parts, f"{self.owed - parts} of another allocation is left")
        self.released_once -= parts
        self.given |= parts
        self.owed |= parts
        self.has_spec = True
        record = self.lifecycle.completed(step.plan, step.record, [rendered(part) for part in sorted(parts, key=str)])
        self.write(record)
        return record

    def take_AwaitAllocate(self, _: steps.AwaitAllocate) -> None:
        self.has_awaited = True

    def take_Release(self, step: steps.Release) -> None:
        record = self.record
        assert record is not None
        saved = {each.part: each for each in record.parts}
        holds(5, not record.is_complete, "the record says that the claim is complete")
        holds(5, not saved[step.saved.part].is_released, f"{step.saved.part.request} is released already")
        holds(8, self.has_awaited, "nobody has waited for threads of allocate")
        holds(9, step.saved.part not in self.released_once, f"{step.saved.part.request} is released again")
        self.released_once.add(step.saved.part)
        self.given.discard(step.saved.part)
        self.owed.discard(step.saved.part)
        self.write(step.record)

    def take_Clear(self, _: steps.Clear) -> None:
        self.has_spec = False

    def take_Forget(self, _: steps.Forget) -> None:
        holds(6, not self.owed, f"{self.owed} was not released")
        self.record, self.has_spec = None, False
        self.states.clear()

    def write(self, record: Record) -> None:
        """Replace the record, as its file would be: only what is in the bytes counts."""
        if record.is_complete:
            parts = {saved.part for saved in record.parts}
            holds(4, parts <= self.given, f"saved as complete, and allocated is {self.given}")
        self.record = Record.decode(record.encode())
        self.states = {
            saved.part: saved.state
            for saved in record.parts
            if not saved.is_released and record.boot_id == f"boot-{self.boot}"
        }


class PlainLife(Life):
    """No hook has a part in a Prepare."""

    allocates = False


def rendered(part: ClaimPart) -> Rendered:
    answers = (SavedAnswer(request=use.base, pool=use.pool, name=use.name) for use in part.uses)
    return Rendered(devices=(), answers=tuple(answers))


def test_every_life_keeps_the_invariants() -> None:
    live(Life, examples=200, steps=15)
    live(PlainLife, examples=100, steps=15)


def live_through_every_failure(module: ModuleType = real) -> Counter[tuple[str, str]]:
    """Let each step of a Prepare and of an Unprepare fail before and after its effect, and then let come what may."""
    hits: Counter[tuple[str, str]] = Counter()
    between: list[Callable[[Life], None]] = [
        lambda _: None,
        lambda life: life.reboot(),
        lambda life: life.allocate_anew(["w2"]),
        lambda life: life.wipe_specs(),
    ]
    kinds = (type(kind.__name__, (kind,), {"hits": hits, "module": module}) for kind in (Life, PlainLife))
    for kind, failure, crashed, comes in itertools.product(kinds, FAILURES_ALL, ("prepare", "unprepare"), between):
        life: Life = kind()
        if crashed == "prepare":
            life.prepare(failure, answers_api=True)
        else:
            life.prepare(None, answers_api=True)
            life.unprepare(failure)
        comes(life)
        life.prepare(None, answers_api=True)
        life.prepare(failure, answers_api=True)
        life.unprepare(None)
        assert life.record is None
        life.unprepare(failure)  # of a claim that is unknown by now
    return hits


def test_a_life_that_ends_at_any_step_is_made_good() -> None:
    hits = live_through_every_failure()
    missing = {(name, when) for name in STEPS for when in ("done", "before", "after")} - hits.keys()
    assert not missing


def test_an_unknown_claim_is_unprepared_without_a_hook() -> None:
    life = Life()
    assert life.lived(life.lifecycle.unprepare(CLAIM), None) == ((), ["Read", "Clear"])


def test_a_claim_of_other_drivers_asks_for_no_device() -> None:
    life = Life()
    run = life.lifecycle.prepare(CLAIM)
    assert isinstance(next(run), steps.Read)
    assert isinstance(run.send(None), steps.Fetch)
    with pytest.raises(StopIteration) as end:
        run.send(claim_object(CLAIM, [result("w0", driver="other.example.com")]))
    assert end.value.value == ()
