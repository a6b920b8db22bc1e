"""Devices fail, pods come and go, kubelet and API server are late; every invariant of the planner's head holds."""

from __future__ import annotations

from itertools import pairwise

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from typing_extensions import override

from kdp.cluster.eviction import (
    FIRST_PAUSE,
    FRESH,
    HOUR,
    AskHolders,
    Describe,
    Description,
    Device,
    Evict,
    EvictionFacts,
    EvictionPlanner,
    EvictionPolicy,
    Outcome,
    PodName,
    Say,
)

from ..mutants import holds, live

AFTER = 60.0
LIMIT = 2
DEVICES: list[Device] = [("a/gpu", "0"), ("a/gpu", "1"), ("b/nic", "0")]
PODS = [PodName("ns", f"p{number}") for number in range(3)]


@attrs.define
class Pod:
    """A pod as it really is."""

    uid: str
    obstacle: str | None = None


class World(RuleBasedStateMachine):
    """The truth, what the planner is told of it and when, and what it does."""

    @initialize(failed=st.sets(st.sampled_from(DEVICES)), seconds=st.sampled_from([0.0, 61.0]))
    def begin(self, failed: set[Device], seconds: float) -> None:
        self.now = 1000.0
        self.planner = EvictionPlanner(EvictionPolicy(after=AFTER, limit=LIMIT))
        self.failed: dict[Device, float] = {}
        self.connected = {"a/gpu", "b/nic"}
        self.pods = {pod: Pod(f"u{index}") for index, pod in enumerate(PODS)}
        self.held = dict(zip(DEVICES, PODS, strict=True))
        self.listed: tuple[dict[Device, PodName], float | None] = (dict(self.held), self.now)
        self.node_ready = True
        self.describing: PodName | None = None
        self.described: tuple[PodName, str, float, float] | None = None
        self.against: int | None = None
        self.evicting: PodName | None = None
        self.asked: list[float] = []
        self.paused: dict[PodName, float] = {}
        self.done: dict[PodName, str] = {}
        self.uids = 10
        for device in sorted(failed):
            self.fail(device)
        self.now += seconds

    # -- the truth -----------------------------------------------------------------------------------------------------

    @rule(device=st.sampled_from(DEVICES))
    def fail(self, device: Device) -> None:
        self.failed.setdefault(device, self.now)
        self.look()

    @rule(device=st.sampled_from(DEVICES), again=st.booleans())
    def recover(self, device: Device, again: bool) -> None:
        """A device is healthy, perhaps for a moment between two looks only."""
        if device in self.failed:
            del self.failed[device]
            self.planner.recovered(device)
            if again:
                self.failed[device] = self.now
        self.look()

    @rule(resource=st.sampled_from(["a/gpu", "b/nic"]))
    def connect(self, resource: str) -> None:
        self.connected ^= {resource}
        self.look()

    @rule(outcome=st.sampled_from(["accepted", "blocked", "unknown"]), late=st.sampled_from([0.0, 0.0, 0.0, 20.0]))
    def go_well(self, outcome: Outcome, late: float) -> None:
        """All that is asked is answered, one after another."""
        self.look()
        self.describe(answers=True, late=late)
        self.now += 0.5
        self.ask_kubelet()
        self.answer(outcome)

    @rule(pod=st.sampled_from(PODS), obstacle=st.sampled_from([None, "it ends already"]))
    def replace(self, pod: PodName, obstacle: str | None) -> None:
        """The pod is another one of the same name."""
        self.uids += 1
        self.pods[pod] = Pod(f"u{self.uids}", obstacle)

    @rule(device=st.sampled_from(DEVICES), pod=st.sampled_from([*PODS, None]))
    def hold(self, device: Device, pod: PodName | None) -> None:
        if pod is None:
            self.held.pop(device, None)
        else:
            self.held[device] = pod

    @rule(is_ready=st.booleans())
    def ready(self, is_ready: bool) -> None:
        self.node_ready = is_ready

    @rule(seconds=st.sampled_from([0.5, 5.0, 40.0, 70.0, 1500.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # -- what is told, and done ----------------------------------------------------------------------------------------

    @rule()
    def ask_kubelet(self) -> None:
        self.listed = dict(self.held), self.now
        self.look()

    @rule()
    def look(self) -> None:
        holders, asked_at = self.listed
        failed = dict.fromkeys(self.failed, "XID 79")
        facts = EvictionFacts(failed=failed, connected=frozenset(self.connected), holders=holders, asked_at=asked_at)
        self.planner.observe(facts, self.now)
        for pod in [pod for pod in self.done if pod not in holders.values()]:
            del self.done[pod]
        self.step()

    @rule()
    def step(self) -> None:
        self.is_sound = False
        for command in self.planner.step(self.now):
            match command:
                case Describe(pod):
                    holds(5, self.describing is None and self.evicting is None, "two pods at a time")
                    holds(5, self.now >= self.paused.get(pod, 0.0), f"{pod} is asked again at once")
                    holds(5, pod not in self.done, f"{pod} goes already")
                    self.describing, self.described = pod, None
                case Evict(pod, uid, _):
                    self.look_at(pod, uid)
                    self.evicting = pod
                    self.asked.append(self.now)
                case _:
                    pass
        self.is_sound = True

    @rule(answers=st.booleans(), late=st.sampled_from([0.0, 0.0, 20.0, 40.0]))
    def describe(self, answers: bool = True, late: float = 0.0) -> None:
        if self.describing is None:
            return
        pod, asked_at = self.describing, self.now
        self.describing = None
        self.now += late
        found: Description | str = "the API server was not reached"
        if answers:
            it = self.pods[pod]
            found = Description(uid=it.uid, is_node_ready=self.node_ready, obstacle=it.obstacle)
            self.described = pod, it.uid, asked_at, self.now
            self.against = 3 if not self.node_ready else 6 if it.obstacle is not None else None
        self.planner.described(pod, found, asked_at=asked_at, now=self.now)
        self.step()

    @rule(outcome=st.sampled_from(["accepted", "accepted", "gone", "blocked", "failed", "unknown"]))
    def answer(self, outcome: Outcome) -> None:
        if self.evicting is None:
            return
        pod, self.evicting = self.evicting, None
        if outcome == "accepted":
            self.done[pod] = self.pods[pod].uid
        else:
            self.paused[pod] = self.now + 15.0
            if outcome != "unknown":
                self.asked.pop()
        self.planner.answered(pod, outcome, outcome, retry_after=15.0, now=self.now)
        self.step()

    def look_at(self, pod: PodName, uid: str) -> None:
        holders, asked_at = self.listed
        mine = [device for device in self.failed if holders.get(device) == pod]
        long = [device for device in mine if self.now - self.failed[device] >= AFTER]
        holds(1, long, f"{pod} holds no device that has failed for so long: {self.failed}")
        holds(3, any(device[0] in self.connected for device in long), "the kubelet holds no stream")
        holds(6, self.described is not None and self.described[:2] == (pod, uid), f"{uid} is not {self.described}")
        assert self.described is not None
        _, _, described_asked_at, described_at = self.described
        holds(self.against or 6, self.against is None, "it is described as one to be left alone")
        holds(2, asked_at is not None and asked_at > described_at, "who holds what was asked before")
        holds(2, self.now - described_asked_at <= FRESH, "the description is old")
        recent = [at for at in self.asked if self.now - at < HOUR]
        holds(4, len(recent) < LIMIT, f"{len(recent)} were asked in an hour")
        holds(5, self.evicting is None and pod not in self.done, f"{pod} is asked twice")

    @override
    def teardown(self) -> None:
        """From now on everybody answers; a pod that holds a failed device is asked within a bounded time."""
        if not getattr(self, "is_sound", False):
            return
        self.connected, self.node_ready = {"a/gpu", "b/nic"}, True
        for it in self.pods.values():
            it.obstacle = None
        self.held = {device: pod for device, pod in self.held.items() if pod not in self.done}
        ends = self.now + AFTER + 3 * HOUR
        while self.now < ends:
            self.ask_kubelet()
            self.describe()
            self.now += 0.5
            self.ask_kubelet()
            if self.evicting is not None:
                pod = self.evicting
                self.answer("accepted")
                self.held = {device: holder for device, holder in self.held.items() if holder != pod}
            self.now += 30.0
        left = [device for device in self.failed if device in self.held]
        holds(7, not left, f"{left} are still held")


@pytest.mark.drawn
def test_every_invariant_holds() -> None:
    live(World, examples=300, steps=25)


GPU: Device = ("a/gpu", "0")
POD = PodName("ns", "p0")


def facts(asked_at: float = 0.0, *, failed: bool = True) -> EvictionFacts:
    return EvictionFacts(
        failed={GPU: "XID 79"} if failed else {},
        connected=frozenset(["a/gpu"]),
        holders={GPU: POD},
        asked_at=asked_at,
    )


def described(planner: EvictionPlanner, now: float) -> None:
    """Bring a planner to where it asks the kubelet once more."""
    planner.observe(facts(), 0.0)
    assert planner.step(now) == (Describe(POD),)
    planner.described(POD, Description(uid="u0", is_node_ready=True), asked_at=now, now=now)
    assert planner.step(now) == (AskHolders(),)


def test_a_budget_is_told_once_and_waited_out() -> None:
    planner = EvictionPlanner(EvictionPolicy(after=60.0, limit=1))
    now, said, evicted = 61.0, list[str](), list[float]()
    described(planner, now)
    while now < 400.0:
        planner.observe(facts(now), now)
        for command in planner.step(now):
            match command:
                case Evict():
                    evicted.append(now)
                    text = "Cannot evict pod as it would violate the pod's disruption budget."
                    planner.answered(POD, "blocked", text, retry_after=0.0, now=now)
                case Describe():
                    planner.described(POD, Description(uid="u0", is_node_ready=True), asked_at=now, now=now)
                case Say(text=text):
                    said.append(text)
                case _:
                    pass
        now += 1.0
    assert said == ["not evicted yet: Cannot evict pod as it would violate the pod's disruption budget."]
    pauses = [later - earlier for earlier, later in pairwise(evicted)]
    assert len(pauses) >= 3
    assert all(pause >= FIRST_PAUSE * 2**index for index, pause in enumerate(pauses))
