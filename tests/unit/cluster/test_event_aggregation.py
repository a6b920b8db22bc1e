"""Notices come in any order and at any rate; every invariant of the module's head holds."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from typing_extensions import override

from kdp.cluster.event_aggregation import BURST, PERIOD, EventAggregator, EventTarget, Notice, Telling

from ..mutants import holds, live

NODE = EventTarget.of_node("node0")
POD = EventTarget.of_pod("ns", "pod", "u1")

Key = tuple[EventTarget, str]


def notice(
    subject: str, *, target: EventTarget = NODE, reason: str = "DeviceUnhealthy", text: str = "is hot"
) -> Notice:
    """Return what a device has to say."""
    together = "{number} devices: {names}"
    message = f"device {subject} {text}"
    return Notice(target=target, subject=subject, reason=reason, message=message, together=together, name=subject)


class World(RuleBasedStateMachine):
    """Says things, lets time pass, and writes what is due, or fails to."""

    @initialize()
    def begin(self) -> None:
        self.now = 1000.0
        self.aggregator = EventAggregator()
        self.newest: dict[Key, Notice] = {}
        self.untold: dict[Key, Counter[str]] = {}
        self.last_told: dict[Key, float] = {}
        self.last_written: dict[Key, Notice] = {}
        self.tellings: dict[EventTarget, list[float]] = {}
        self.series: dict[tuple[EventTarget, str, str], tuple[str, int]] = {}
        self.number = 0
        self.said = self.told = 0

    @rule(
        subjects=st.lists(st.sampled_from([f"d{i}" for i in range(9)]), min_size=1, max_size=4),
        about=st.sampled_from([NODE, NODE, POD]),
        reason=st.sampled_from(["DeviceUnhealthy", "DeviceRecovered", "DeviceQuarantined", "ResourceLost"]),
        text=st.sampled_from(["is hot", "is cold"]),
    )
    def say(self, subjects: list[str], about: EventTarget, reason: str, text: str) -> None:
        for subject in subjects:
            said = notice(subject, target=about, reason=reason, text=text)
            self.aggregator.add(said, self.now)
            self.said += 1
            self.newest[said.key] = said
            self.untold.setdefault(said.key, Counter())[said.reason + said.message] += 1

    @rule(seconds=st.sampled_from([0.05, 0.3, 3.0, 11.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(works=st.booleans(), changes=st.booleans())
    def write(self, works: bool, changes: bool = False) -> None:
        """Write what is due, one after another; meanwhile a device may change that is being told."""
        for telling in self.aggregator.due(self.now):
            self.look_at(telling)
            for pending in telling.pending if changes else ():
                self.say([pending.notice.subject], telling.target, "DeviceRecovered", "is fine")
            if works:
                self.number += 1
                self.told += telling.notices
                event = telling.event or f"e{self.number}"
                self.series[telling.words] = event, telling.count
                self.aggregator.written(telling, event)
                for pending in telling.pending:
                    self.last_written[pending.notice.key] = pending.notice
                    self.untold[pending.notice.key][pending.notice.reason + pending.notice.message] -= pending.count
            else:
                self.aggregator.returned(telling)

    @rule()
    def expire(self) -> None:
        """The API server deletes Events when they are old."""
        for event, _ in self.series.values():
            self.aggregator.forget(event)
        self.series.clear()

    def look_at(self, telling: Telling) -> None:
        times = self.tellings.setdefault(telling.target, [])
        times.append(self.now)
        for index, at in enumerate(times):
            most = BURST + (self.now - at) / PERIOD + 1e-3
            holds(2, len(times) - index <= most, f"{len(times) - index} since {self.now - at:g} s")
        for pending in telling.pending:
            key = pending.notice.key
            if key in self.last_told:
                holds(1, self.now - self.last_told[key] >= PERIOD - 1e-6, f"{key} was told just now")
            holds(3, pending.notice == self.newest[key], f"{pending.notice} is old")
            self.last_told[key] = self.now
        event, before = self.series.get(telling.words, (None, 0))
        holds(4, telling.event == event, f"{telling} should be {event}")
        more = telling.count - before
        if len(telling.pending) == 1:
            said = telling.pending[0].notice
            holds(4, 1 <= more <= self.untold[said.key][said.reason + said.message], f"{more} times of {said}")
        else:
            holds(4, more >= 1, f"{more} times")

    @override
    def teardown(self) -> None:
        """From now on nothing happens, and the API server takes everything."""
        if not hasattr(self, "aggregator"):
            return
        ends = self.now + (BURST + 8) * PERIOD
        while (deadline := self.aggregator.deadline) is not None:
            holds(3, deadline <= ends, f"it is told at {deadline}, and the end is {ends}")
            self.now = max(self.now, deadline)
            pending = len(self.aggregator._pending)
            self.write(works=True)
            holds(3, len(self.aggregator._pending) < pending, "it is due and not told")
        for key, said in self.newest.items():
            holds(3, self.last_written.get(key) == said, f"{said} is not told")
        holds(4, self.told == self.said, f"Events stand for {self.told} of {self.said} notices")


@pytest.mark.drawn
def test_every_invariant_holds() -> None:
    live(World, examples=300, steps=30)


def played(aggregator: EventAggregator, now: float, until: float) -> list[tuple[float, Telling]]:
    """Return what is told until then, each when it is due."""
    told: list[tuple[float, Telling]] = []
    while (deadline := aggregator.deadline) is not None and deadline <= until:
        now = max(now, deadline)
        for telling in aggregator.due(now):
            aggregator.written(telling, f"event-{len(told)}" if telling.event is None else telling.event)
            told.append((now, telling))
    return told


def test_a_hundred_flaps_a_second_make_one_event_in_ten_seconds() -> None:
    aggregator, told = EventAggregator(), list[tuple[float, Telling]]()
    for step in range(6000):
        now = step / 100
        reason = ("DeviceUnhealthy", "DeviceRecovered")[step % 2]
        aggregator.add(notice("gpu-0", reason=reason), now)
        told += played(aggregator, now, now)
    times = [at for at, _ in told]
    assert len(times) == 6
    assert all(later - earlier >= PERIOD for earlier, later in pairwise(times))
    assert {telling.reason for _, telling in told} <= {"DeviceUnhealthy", "DeviceRecovered"}


def test_many_devices_that_fail_together_are_one_event() -> None:
    aggregator = EventAggregator()
    for number in range(5000):
        aggregator.add(notice(f"gpu-{number}"), 0.0)
    [(_, telling)] = played(aggregator, 0.0, 60.0)
    assert telling.message == f"5000 devices: {', '.join(f'gpu-{n}' for n in range(8))}, ..."
    assert telling.count == 1
