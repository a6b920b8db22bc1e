"""A publication lives random lives; every invariant of its head holds, and a mutant of each does not survive.

The world is a server that drops fields, forgets, is away, refuses, is wiped and edited by others, and a watch that
brings what happened later, or breaks. At the end of each life all goes well, and the server must soon have what is
wanted.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from typing_extensions import override

import kdp
from kdp.cluster.api import ApiError, WatchEvent
from kdp.dra.publishing import planner as real
from kdp.dra.publishing.slices import Pool

from ...mutants import Mutant, assert_killed, each_mutant, holds, live
from ..memory_api import MemoryServer

MODULE = "kdp.dra.publishing.planner"
POOL = Pool.of_node("gpu.example.com", "node-0")
OTHER: Mapping[str, Any] = {
    "metadata": {"name": "of-another-pool"},
    "spec": {"driver": "gpu.example.com", "pool": {"name": "elsewhere", "generation": 1, "resourceSliceCount": 1}},
}


def device(number: int, kind: int) -> kdp.Device:
    match kind:
        case 1:
            return kdp.Device(id=f"w{number:03}", attributes={"x": number})
        case 2:
            return kdp.Device(id=f"w{number:03}", taints=[kdp.Taint(key="worn")])
        case 3:
            return kdp.Device(id=f"w{number:03}", consumes={"card": {"memory": 1}})
        case _:
            return kdp.Device(id=f"w{number:03}")


class World(RuleBasedStateMachine):
    """The server, the watch, and time."""

    module: ClassVar[ModuleType] = real

    def __init__(self) -> None:
        super().__init__()
        self.server = MemoryServer()
        self.server.put(OTHER)
        self.core = self.module.Planner(POOL, owner="node-0", rng=random.Random(1))  # noqa: S311 - jitter
        self.now = 1000.0
        self.watched: int | None = None
        self.late: deque[tuple[int, WatchEvent]] = deque()
        self.fault: ApiError | None = None
        self.is_lost = False
        self.known_off: set[str] = set()
        self.times: dict[str, float] = {}
        self.all_times: list[float] = []
        self.failures: list[float] = []
        self.devices: list[kdp.Device] = []
        self.core.want([], {"card": {"memory": 100}}, {})

    # -- the driver of the core ----------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do one step; false: there is nothing to do now."""
        step = self.core.next(self.now)
        name = type(step).__name__
        if name == "Wait":
            holds(3, step.until is None or step.until > self.now, "what is due is waited for")
            return False
        if name == "Watch":
            holds(6, self.watched is None, "a second watch")
            self.watched = int(step.resource_version)
            return True
        is_write = name in ("Create", "Update", "Delete")
        if is_write:
            self._judge(name, step)
        before = dict(self.server.items)
        try:
            if self.fault is not None:
                raise self.fault
            result = self._answer(name, step)
            self.bring(self.early)
            if self.is_lost:
                self.is_lost = False
                raise ApiError("the answer is lost")
        except ApiError as error:
            if error.status not in (404, 409):
                self._judge_pause()
            self.core.failed(step, error, self.now)
        else:
            if is_write and name != "Delete":
                known = len(self.known_off)
                self._learn(step.item, result)
                if len(self.known_off) > known:  # what the server cannot hold honestly is taken back at once
                    self.times.pop(result["metadata"]["name"], None)
            self.core.done(step, result, self.now)
        if is_write:
            theirs = {name for name, item in before.items() if item["spec"]["pool"]["name"] != POOL.name}
            holds(4, theirs <= self.server.items.keys(), "a slice of another pool is gone")
        return True

    early: int = 0

    def _answer(self, name: str, step: Any) -> Any:
        match name:
            case "ReadVersion":
                return self.server.release
            case "ReadOwner":
                return self.server.node(step.node)
            case "ReadSlices":
                return self.server.listed(POOL.driver)
            case "Check":
                judge = self.server.create if type(step.write).__name__ == "Create" else self.server.update
                return judge(step.write.item, dry_run=True)
            case "Create":
                return self.server.create(step.item)
            case "Update":
                return self.server.update(step.item)
            case _:
                return self.server.delete(step.item)

    def _judge(self, name: str, step: Any) -> None:
        item = step.item
        slice_name = item["metadata"]["name"]
        spec = item["spec"]
        holds(4, (spec["driver"], spec["pool"]["name"]) == (POOL.driver, POOL.name), f"{name} of another pool")
        if name != "Create":
            holds(4, item["metadata"].keys() >= {"uid", "resourceVersion"}, f"{name} does not say of what")
        last = self.times.get(slice_name)
        holds(2, last is None or self.now - last >= 0.999, f"{slice_name} is written after {self.now - (last or 0)} s")
        self.times[slice_name] = self.now
        self.all_times.append(self.now)
        for seconds in (5.0, 30.0):
            recent = [at for at in self.all_times if at > self.now - seconds]
            holds(2, len(recent) <= 105 + 20 * seconds, f"{len(recent)} writes in {seconds} s")
        if name != "Delete":
            stored = self.server.items.get(slice_name)
            same = stored is not None and _content(stored) == _content(item)
            is_known = self.watched is not None and not self.late and not self._unseen()
            holds(1, not (same and is_known), f"{name} of {slice_name} changes nothing")
            for each in spec.get("devices", ()):
                if "DRAPartitionableDevices" in self.known_off:
                    holds(5, "consumesCounters" not in each, "a partition that nobody counts")
                if "DRADeviceTaints" in self.known_off:
                    holds(5, "taints" not in each, "a taint that nobody sees")

    def _judge_pause(self) -> None:
        self.failures.append(self.now)
        for seconds in (1.0, 10.0, 60.0):
            recent = [at for at in self.failures if at > self.now - seconds]
            most = {1.0: 8, 10.0: 16, 60.0: 26}[seconds]
            holds(3, len(recent) <= most, f"{len(recent)} failures in {seconds} s")

    def _learn(self, sent: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        for gate, field in (
            ("DRAPartitionableDevices", "sharedCounters"),
            ("DRAPartitionableDevices", "consumesCounters"),
            ("DRADeviceTaints", "taints"),
        ):
            if field in str(sent["spec"]) and field not in str(stored["spec"]):
                self.known_off.add(gate)

    def _unseen(self) -> list[WatchEvent]:
        return [event for version, event in self.server.events if version > (self.watched or 0)]

    def bring(self, most: int) -> None:
        """Bring some events of the watch."""
        for version, event in list(self.server.events):
            if self.watched is not None and version > self.watched and most > 0:
                most -= 1
                self.watched = version
                self.core.observed(copy.deepcopy(event), self.now)

    def work(self, steps: int) -> None:
        for _ in range(steps):
            if not self.step():
                break

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule(
        kinds=st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), max_size=6),
        count=st.sampled_from([0, 3, 3, 70, 140]),
        steps=st.integers(0, 12),
    )
    def want(self, kinds: list[int], count: int, steps: int) -> None:
        self.devices = [device(n, kinds[n] if n < len(kinds) else 0) for n in range(count)]
        self.core.want(self.devices, {"card": {"memory": 100}}, {})
        self.work(steps)

    @rule(steps=st.integers(0, 12), early=st.integers(0, 3))
    def work_on(self, steps: int, early: int) -> None:
        self.early = early
        self.work(steps)

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 1.0, 5.0, 70.0, 400.0]), steps=st.integers(0, 12))
    def pass_time(self, seconds: float, steps: int) -> None:
        self.now += seconds
        self.work(steps)

    @rule()
    def time_goes_by(self) -> None:
        for _ in range(40):
            self.now += 0.25
            self.work(5)

    @rule(most=st.integers(1, 9), steps=st.integers(0, 12))
    def watch_brings(self, most: int, steps: int) -> None:
        self.bring(most)
        self.work(steps)

    @rule(
        which=st.integers(0, 3),
        how=st.sampled_from(["delete", "edit", "label", "add", "wipe", "other"]),
        calm=st.booleans(),
    )
    def somebody_writes(self, which: int, how: str, calm: bool) -> None:
        if calm:  # the publication has done all it wants
            for _ in range(3):
                self.now += 70.0
                self.work(400)
                self.bring(10**6)
        ours = sorted(name for name, item in self.server.items.items() if item["spec"]["pool"]["name"] == POOL.name)
        if how == "wipe":
            for name in ours:
                self.server.remove(name)
        elif how == "other":
            self.server.put(OTHER)
        elif ours:
            item = copy.deepcopy(self.server.items[ours[which % len(ours)]])
            match how:
                case "delete":
                    self.server.remove(item["metadata"]["name"])
                case "edit":
                    item["spec"]["devices"] = []
                    self.server.put(item)
                case "label":
                    item["metadata"]["labels"] = {"at": str(self.server.version)}
                    self.server.put(item)
                case _:
                    self.server.put({**item, "metadata": {"name": f"strange-{which}"}})

    @rule(status=st.sampled_from([None] * 8 + [0, 403, 422, 429, 500, 503]), wait=st.sampled_from([None, 2.0]))
    def faults(self, status: int | None, wait: float | None) -> None:
        self.fault = None if status is None else ApiError("no", status=status, retry_after=wait)

    @rule()
    def answer_is_lost(self) -> None:
        self.is_lost = True

    @rule(status=st.sampled_from([None, None, 0, 410, 500]))
    def watch_ends(self, status: int | None) -> None:
        if self.watched is not None:
            self.watched = None
            if status not in (None, 410):
                self._judge_pause()
            self.core.watch_ended(None if status is None else ApiError("ended", status=status), self.now)

    @rule(gates=st.sets(st.sampled_from(["DRAPartitionableDevices", "DRADeviceTaints"])))
    def another_version(self, gates: set[str]) -> None:
        """Restart the server as another version with these gates off."""
        if self.watched is not None:
            self.watched = None
            self.core.watch_ended(ApiError("cut"), self.now)
            self.known_off.clear()
            self.server.gates_off = gates
            self.server.release = f"v1.37.{self.server.version}"

    @rule()
    def node_is_made_anew(self) -> None:
        self.server.nodes["node-0"] = f"uid-{self.server.version}"
        for name, item in list(self.server.items.items()):
            if item["metadata"].get("ownerReferences"):
                self.server.remove(name)

    @override
    def teardown(self) -> None:
        """All goes well from now on."""
        self.fault, self.is_lost, self.early = None, False, 9
        for _ in range(80):
            self.now += 7.0
            self.work(400)
            self.bring(10**6)
        self.work(400)
        off = self.core.status.withheld
        ours = {name: item for name, item in self.server.items.items() if item["spec"]["pool"]["name"] == POOL.name}
        found = [d["name"] for name in sorted(ours) for d in ours[name]["spec"].get("devices", ())]
        holds(6, found == [each.id for each in self.devices if each.id not in off], f"the server has {found}")
        pools = {str(item["spec"]["pool"]) for item in ours.values()}
        holds(6, len(pools) == 1, f"generations differ: {pools}")
        count = next(iter(ours.values()))["spec"]["pool"]["resourceSliceCount"]
        holds(6, count == len(ours), f"{count} slices are announced, {len(ours)} are there")
        owners = {item["metadata"]["ownerReferences"][0]["uid"] for item in ours.values()}
        holds(6, owners == {self.server.nodes["node-0"]}, f"the owners are {owners}")
        status = self.core.status
        holds(6, status.is_current and status.problem is None, f"the status is {status}")
        holds(6, off.keys() == {d.id for d in self.devices if self._is_unsafe(d)}, f"withheld are {off}")
        writes = len(self.server.writes)
        self.core.want(self.devices, {"card": {"memory": 100}}, {})
        self.now += 1000.0
        self.work(400)
        holds(1, len(self.server.writes) == writes, "writes although nothing has changed")

    def _is_unsafe(self, each: kdp.Device) -> bool:
        off = self.server.gates_off
        return bool(each.consumes and "DRAPartitionableDevices" in off) or bool(
            each.taints and "DRADeviceTaints" in off
        )


def _content(item: Mapping[str, Any]) -> Any:
    spec = copy.deepcopy(item["spec"])
    for each in spec.get("devices", ()):
        for taint in each.get("taints", ()):
            taint.pop("timeAdded", None)
    return spec, item["metadata"].get("ownerReferences")


def test_all_invariants_hold() -> None:
    live(World, examples=60, steps=25)


MUTANTS = [
    Mutant(1, "what is there is written again", "last=self._generation, owners", "last=self._generation + 1, owners"),
    Mutant(4, "slices of other pools count as ours", ' and spec["pool"]["name"] == self._pool.name', ""),
    Mutant(6, "what was dropped is forgotten", "self._dropped |= news\n", "pass\n"),
    Mutant(6, "own writes are taken for others'", "if _number(version) <= max(", "if _number(version) < 0 * max("),
    Mutant(6, "a wiped slice is not missed", "            del self._stored[name]\n", ""),
    Mutant(6, "others' edits are not seen", "            self._stored[name] = item\n", "            return\n"),
]
MUTANTS_OF_PACING = [
    Mutant(2, "no gap between writes of a slice", "self._written[name] + SLICE_GAP for", "self._written[name] for"),
    Mutant(3, "what is refused is repeated at once", "now + at_least + backoff.next()", "now"),
    Mutant(3, "the pauses do not grow", "        self._failed_at = now\n", "        backoff.reset()\n"),
]


@each_mutant(MUTANTS)
def test_mutants_are_noticed(mutant: Mutant) -> None:
    module = mutant.load(MODULE)
    assert_killed(
        mutant,
        (
            partial(live, World, examples=40, steps=25, number=number, shrinks=False, module=module)
            for number in range(30)
        ),
    )


@each_mutant(MUTANTS_OF_PACING)
def test_mutants_of_the_pacing_are_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    module = mutant.load("kdp.dra.publishing.pacing")
    monkeypatch.setattr(real, "WriteRate", module.WriteRate)
    monkeypatch.setattr(real, "Failures", module.Failures)
    lives = (partial(live, World, examples=40, steps=25, number=number, shrinks=False) for number in range(30))
    assert_killed(mutant, lives)
