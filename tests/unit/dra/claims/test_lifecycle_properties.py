"""A claim lives random lives; every invariant of the lifecycle's head holds.

Each step can fail before or after it took effect, which is also what a killed process leaves; nodes reboot, and the
scheduler allocates anew without telling.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from typing_extensions import override

import kdp
from kdp.cdi import CdiDevice
from kdp.cluster.api import ApiError
from kdp.dra.claims.checkpoint import ClaimPart, Record, Use
from kdp.dra.claims.lifecycle import ClaimLifecycle, OwedError
from kdp.model.claims import Claim

from ...mutants import holds, live
from .claim_objects import DRIVER, POOL, claim, claim_object, result

CLAIM = claim()
DEVICES = {name: kdp.Device(id=name) for name in ("w0", "w1", "w2")}
ALLOCATIONS = st.lists(st.sampled_from(sorted(DEVICES)), min_size=1, max_size=2, unique=True)
FAILURES_ALL = [(number, when) for number in range(14) for when in ("before", "after")]
"""At which step a run ends, and whether the step has taken effect."""
FAILURES = st.none() | st.sampled_from(FAILURES_ALL)

STEPS = (
    "read",
    "fetch",
    "devices",
    "restore",
    "start",
    "allocate",
    "save",
    "prepare_container",
    "complete",
    "commit",
    "settle",
    "release",
    "hide",
    "clear",
    "forget",
)

_T = TypeVar("_T")


class FailedError(Exception):
    """A step failed."""


@attrs.frozen(kw_only=True)
class OnPaper(ClaimLifecycle):
    """Its steps are those of a life, and change nothing but that."""

    life: Life

    @override
    async def _read(self, claim: Claim) -> Record | None:
        return self.life.step("read", lambda: self.life.record)

    @override
    async def fetch(self, claim: Claim) -> Mapping[str, Any]:
        return self.life.step("fetch", self.life.fetched)

    @override
    async def _restore(self, record: Record) -> None:
        self.life.step("restore", self.life.write_spec)

    @override
    async def _start(self, record: Record) -> Mapping[int, Any]:
        return self.life.step("start", lambda: self.life.start(record))

    @override
    async def _save(self, record: Record) -> None:
        self.life.step("save", lambda: self.life.write(record))

    @override
    async def _complete(self, record: Record) -> None:
        self.life.step("complete", lambda: self.life.complete(record))

    @override
    async def _commit(self, record: Record) -> Record:
        return self.life.step("commit", lambda: self.life.commit(self._completed(record, [])))

    @override
    async def _released(self, record: Record, position: int) -> Record:
        return self.life.step("release", lambda: self.life.released(record, position))

    @override
    async def _hide(self, claim: Claim) -> None:
        self.life.step("hide", self.life.wipe_specs)

    @override
    async def _clear(self, claim: Claim) -> None:
        self.life.step("clear", lambda: None)

    @override
    async def _forget(self, claim: Claim) -> None:
        self.life.step("forget", self.life.forget)


class HooksOnPaper:
    """The backend of a life."""

    backend = SimpleNamespace(resource="example.com/widget", config=None, joined_env={})

    def __init__(self, life: Life) -> None:
        self._life = life

    def overridden(self, hook: str) -> bool:
        return self._life.releases if hook == "released" else self._life.allocates

    async def devices(self) -> Mapping[str, kdp.Device]:
        return self._life.step("devices", lambda: DEVICES)

    async def allocate(
        self, claim: Claim, part: ClaimPart, config: object, metadata: Any
    ) -> tuple[ClaimPart, list[CdiDevice]]:
        return self._life.step("allocate", lambda: (self._life.allocate(part), []))

    def reaching(self, use: Use) -> Use:
        return use

    def withheld(self, records: object, *, of: Claim) -> dict[str, Any]:
        """No claim has a device under another name."""
        return {}

    async def prepare_container(self, claim: Claim, part: ClaimPart, config: object, state: dict[str, Any]) -> None:
        self._life.step("prepare_container", lambda: self._life.prepare_container(part, state))

    def running(self, claim: Claim) -> str | None:
        return "allocate" if self._life.is_running else None

    def note_state(self, claim: Claim, part: ClaimPart, state: dict[str, Any]) -> None:
        """No state is forgotten: the disk takes it, or the next hook gets the older one."""

    async def settled(self, record: Record, *, deadline: float | None = None) -> Record:
        self._life.step("settle", self._life.end_late)
        return record


class Life(RuleBasedStateMachine):
    """One claim on one node. The disk is a record, hardware is a set of parts."""

    allocates: ClassVar[bool] = True
    releases: ClassVar[bool] = True
    hits: ClassVar[Counter[tuple[str, str]]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.boot = 0
        self.record: Record | None = None
        self.has_spec = False
        self.allocated = ["w0", "w1"]
        self.given: set[object] = set()
        self.owed: set[object] = set()
        self.states: dict[object, Mapping[str, Any]] = {}
        self.is_over = False
        self.is_running = False
        self.pre_started: set[object] = set()
        self.answers_api = True
        self.released_once: set[object] = set()
        self.taken: list[str] = []
        self.failure: tuple[int, str] = (-1, "")

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule(devices=ALLOCATIONS)
    def allocate_anew(self, devices: list[str]) -> None:
        self.allocated = devices

    @rule()
    def reboot(self) -> None:
        self.boot += 1
        self.has_spec = False
        self.is_running = False
        self.given.clear()
        self.pre_started.clear()
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
        answer = self.lived(self.lifecycle.prepare(CLAIM), failure)
        if is_prepared and (is_same or not answers_api):
            assert before is not None
            holds(2, {*self.taken} <= {"read", "fetch", "restore"}, f"a prepared claim is touched: {self.taken}")
            holds(2, answer in (None, before.uses), f"{answer} is told, and {before.uses} was")
            holds(2, answer is None or self.has_spec, "the spec is missing")
        if before is not None and before.is_over:
            holds(3, self.taken == ["read"], f"a release is owed, and Prepare did {self.taken}")
        if answer is not None:
            assert self.record is not None
            parts = {part.key for part in self.record.parts}
            holds(4, parts <= self.given, f"answered, and allocated is {self.given}")

    @rule(failure=FAILURES)
    def unprepare(self, failure: tuple[int, str] | None) -> None:
        answer = self.lived(self.ended(), failure)
        holds(10, {*self.taken} <= {"read", "save", "clear", "forget"}, f"Unprepare did {self.taken}")
        if answer is not None:
            [owed] = answer
            assert (self.record, self.is_over) == (owed, owed is not None)

    @rule(failure=FAILURES)
    def release(self, failure: tuple[int, str] | None) -> None:
        was_over = self.is_over
        answer = self.lived(self.tried(), failure)
        assert answer is None or not was_over or self.record is None

    @rule()
    def end_late(self) -> None:
        """A thread of a hook ends that nobody waits for."""
        self.is_running = False

    # -- the steps -----------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> frozenset[tuple[str, str, str, str]]:
        return frozenset((name, POOL, device, "") for name, device in zip("ab", self.allocated, strict=False))

    @property
    def lifecycle(self) -> ClaimLifecycle:
        unused: Any = None
        hooks: Any = HooksOnPaper(self)
        boot = f"boot-{self.boot}"
        return OnPaper(driver=DRIVER, pool=POOL, boot_id=boot, api=unused, files=unused, hooks=hooks, life=self)

    async def ended(self) -> tuple[Record | None]:
        return (await self.lifecycle.unprepare(CLAIM),)

    async def tried(self) -> tuple[()]:
        await self.lifecycle.release(CLAIM)
        return ()

    def lived(self, life: Coroutine[None, None, _T], failure: tuple[int, str] | None) -> _T | None:
        """Live, and return the answer; None: a step failed."""
        self.failure = failure or (-1, "")
        self.taken = []
        try:
            life.send(None)
        except StopIteration as end:
            answer: _T = end.value
            return answer
        except (FailedError, ApiError, OwedError):
            return None
        raise AssertionError("a step waited")

    def step(self, name: str, effect: Callable[[], _T]) -> _T:
        """Take a step, unless the life ends before it, or right after it."""
        number, when = self.failure
        ends = len(self.taken) == number
        self.hits[name, when if ends else "done"] += 1
        self.taken.append(name)
        if ends and when == "before":
            raise FailedError
        result = effect()
        if ends:
            raise FailedError
        return result

    def fetched(self) -> Mapping[str, Any]:
        if not self.answers_api:
            raise ApiError("the API server is away")
        results = [result(device, name) for name, device in zip("ab", self.allocated, strict=False)]
        return claim_object(CLAIM, results)

    def write_spec(self) -> None:
        self.has_spec = True

    def start(self, record: Record) -> Mapping[int, Any]:
        parts = {part.key for part in record.parts}
        holds(3, self.owed <= parts, f"{self.owed - parts} of another allocation is left")
        holds(3, not self.is_over, "the claim is over, and is started again")
        for part in record.parts:
            expected = self.states.get(part.key, {})
            holds(7, part.state == expected, f"{part.request} starts with {part.state} and not {expected}")
        self.owed |= parts
        self.released_once -= parts  # they count as touched from now on
        self.write(record)
        return {}

    def allocate(self, part: ClaimPart) -> ClaimPart:
        record = self.record
        is_started = record is not None and not record.is_complete and record.boot_id == f"boot-{self.boot}"
        holds(1, is_started and record and part.key in {each.key for each in record.parts}, f"the disk has {record}")
        self._may_hang()
        self.released_once.discard(part.key)
        self.given.add(part.key)
        self.pre_started.discard(part.key)  # it may undo that
        self.owed.add(part.key)
        is_changed = part.request == "a" or len(self.allocated) == 1
        return attrs.evolve(part, state={"times": part.state.get("times", 0) + 1}) if is_changed else part

    def prepare_container(self, part: ClaimPart, state: dict[str, Any]) -> None:
        self._may_hang()
        assert self.record is not None
        parts = {each.key for each in self.record.parts}
        holds(11, parts <= self.given, f"allocated is {self.given}")
        holds(11, not self.record.is_complete, "the claim is complete, so a pod may run on it")
        state["pre-started"] = True
        self.pre_started.add(part.key)

    def _may_hang(self) -> None:
        self.is_running = self.failure == (len(self.taken) - 1, "after")  # its caller is answered at the deadline

    def complete(self, record: Record) -> None:
        holds(11, not self.allocates or {part.key for part in record.parts} <= self.pre_started, "one had no call")
        self.has_spec = True
        self.write(record)

    def commit(self, record: Record) -> Record:
        parts = {part.key for part in record.parts}
        holds(3, self.owed <= parts, f"{self.owed - parts} of another allocation is left")
        holds(3, not self.is_over, "the claim is over, and is prepared again")
        self.released_once -= parts
        self.given |= parts
        self.owed |= parts
        self.complete(record)
        return record

    def released(self, record: Record, position: int) -> Record:
        part = record.parts[position]
        assert self.record is not None
        there = {each.key: each for each in self.record.parts}
        holds(5, self.record.is_over, "the record does not say that the release is owed")
        holds(5, not there[part.key].is_released, f"{part.request} is released already")
        expected = self.states.get(part.key, {})
        holds(7, part.state == expected, f"{part.request} is released with {part.state} and not {expected}")
        holds(8, not self.is_running, "nobody has waited for threads of hooks")
        holds(9, part.key not in self.released_once, f"{part.request} is released again")
        self.released_once.add(part.key)
        self.given.discard(part.key)
        self.owed.discard(part.key)
        released = record.with_part(position, attrs.evolve(part, is_released=True))
        self.write(released)
        return released

    def forget(self) -> None:
        holds(6, not (self.releases and self.owed), f"{self.owed} was not released")
        holds(8, not self.is_running, "a thread of a hook runs for a claim that is forgotten")
        self.owed.clear()
        self.given.clear()
        self.record, self.has_spec, self.is_over = None, False, False
        self.pre_started.clear()
        self.states.clear()

    def write(self, record: Record) -> None:
        """Replace the record, as its file would be: only what is in the bytes counts."""
        if record.is_complete:
            parts = {part.key for part in record.parts}
            holds(4, parts <= self.given, f"saved as complete, and allocated is {self.given}")
        self.record = Record.decode(record.encode())
        self.is_over = self.record.is_over
        self.states = {
            part.key: part.state
            for part in record.parts
            if not part.is_released and record.boot_id == f"boot-{self.boot}"
        }


class PlainLife(Life):
    """No hook has a part in a Prepare."""

    allocates = False


class UnreleasedLife(Life):
    """The backend has no hook ``released``."""

    releases = False


def test_every_life_keeps_the_invariants() -> None:
    live(Life, examples=200, steps=15)
    live(PlainLife, examples=100, steps=15)
    live(UnreleasedLife, examples=100, steps=15)


def test_a_life_that_ends_at_any_step_is_made_good() -> None:
    """Each step of a Prepare, an Unprepare, and a release fails before and after its effect; then comes what may."""
    hits: Counter[tuple[str, str]] = Counter()
    between: list[Callable[[Life], None]] = [
        lambda _: None,
        lambda life: life.reboot(),
        lambda life: life.allocate_anew(["w2"]),
        lambda life: life.wipe_specs(),
        lambda life: life.unprepare(None),
    ]
    kinds = (type(kind.__name__, (kind,), {"hits": hits}) for kind in (Life, PlainLife, UnreleasedLife))
    calls = ("prepare", "unprepare", "release")
    for kind, failure, crashed, comes in itertools.product(kinds, FAILURES_ALL, calls, between):
        life: Life = kind()
        if crashed == "prepare":
            life.prepare(failure, answers_api=True)
        else:
            life.prepare(None, answers_api=True)
            life.unprepare(None if crashed == "release" else failure)
        if crashed == "release":
            life.release(failure)
        comes(life)
        for _ in range(2):  # a Prepare of another allocation ends the old one
            life.prepare(None, answers_api=True)
            life.release(None)
        life.prepare(None, answers_api=True)
        life.prepare(failure, answers_api=True)
        life.unprepare(None)
        life.release(None)
        assert life.record is None
        life.unprepare(failure)  # of a claim that is unknown by now
    missing = {(name, when) for name in STEPS for when in ("done", "before", "after")} - hits.keys()
    assert not missing


def test_an_unknown_claim_is_unprepared_without_a_hook() -> None:
    life = Life()
    assert life.lived(life.ended(), None) == (None,)
    assert life.taken == ["read", "clear"]


def test_a_claim_of_other_drivers_asks_for_no_device() -> None:
    life = Life()
    others = claim_object(CLAIM, [result("w0", driver="other.example.com")])
    life.fetched = lambda: others  # type: ignore[method-assign]
    assert life.lived(life.lifecycle.prepare(CLAIM), None) == ()
    assert life.taken == ["read", "fetch"]
