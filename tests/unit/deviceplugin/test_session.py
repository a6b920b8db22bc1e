"""The named situations of the kubelet contract; the random ones are in test_session_properties.py."""

from __future__ import annotations

import random

from kdp.concurrency.backoff import Backoff
from kdp.deviceplugin.session import (
    CROSSED_DEADLINE,
    REFUSED_PAUSE,
    STREAM_DEADLINE,
    UNNOTICED_DEADLINE,
    WATCHER_STREAM_DEADLINE,
    Close,
    Closed,
    Command,
    Contacted,
    DriftDetected,
    Event,
    KubeletGone,
    KubeletHere,
    ListReady,
    Register,
    Registered,
    RegisterFailed,
    Serve,
    Served,
    ServeFailed,
    Session,
    State,
    StreamClosed,
    StreamOpened,
    Tick,
)


class Life:
    """A session and its clock."""

    def __init__(self, *, watcher: bool = False) -> None:
        self.session = Session(backoff=Backoff(rng=random.Random(0)), watcher=watcher)  # noqa: S311 - jitter
        self.now = 1000.0

    def __call__(self, *events: Event) -> list[Command]:
        """Say these events; return what the session answers to the last one."""
        commands: list[Command] = []
        for event in events:
            commands = self.session.handle(event, self.now)
        return commands

    def until_connected(self) -> None:
        if not self.session.generation:
            self(ListReady(), KubeletHere("first"))
        generation = self.session.generation
        self(Served(generation), Registered(generation), StreamOpened(generation))
        assert self.is_in(State.CONNECTED)

    def is_in(self, state: State) -> bool:
        return self.session.state is state

    def pause(self) -> float:
        assert self.session.deadline is not None
        return self.session.deadline - self.now


def test_nothing_is_served_before_there_are_a_list_and_a_kubelet() -> None:
    life = Life()
    assert life(KubeletHere("first")) == []
    assert life.session.deadline is None
    assert life(ListReady()) == [Serve(1)]

    life = Life()
    assert life(ListReady()) == []
    assert life(KubeletHere("first")) == [Serve(1)]


def test_no_stream_in_time_means_a_new_generation() -> None:
    """B6: the kubelet said yes and died."""
    life = Life()
    life(ListReady(), KubeletHere("first"), Served(1), Registered(1))
    life.now += STREAM_DEADLINE - 0.1
    assert life(Tick()) == []
    life.now += 0.1
    assert life(Tick()) == [Close(1)]
    assert life.session.reason == "registered, but the kubelet opened no stream in time"
    assert life(Closed(1)) == []
    life.now += life.pause()
    assert life(Tick()) == [Serve(2)]


def test_a_lost_stream_is_answered_with_a_new_name() -> None:
    """B2, scenario 14: the kubelet never opens a second stream."""
    life = Life()
    life.until_connected()
    life.now += 60.0
    assert life(StreamClosed(1)) == [Close(1)]
    assert life.session.reason == "the kubelet has ended its stream"
    assert life(Closed(1)) == [Serve(2)], "the stream had lived long: no pause"


def test_streams_that_end_at_once_are_answered_with_growing_pauses() -> None:
    """B1, scenario 16."""
    life = Life()
    pauses = []
    for _ in range(8):
        life.until_connected()
        generation = life.session.generation
        assert life(StreamClosed(generation)) == [Close(generation)]
        life(Closed(generation))
        pauses.append(life.pause())
        life.now += life.pause()
        assert life(Tick()) == [Serve(generation + 1)]
    assert 0.05 <= pauses[0] <= 0.1
    assert 2.5 <= pauses[-1] <= 5.0


def test_the_same_kubelet_seen_again_ends_no_pause() -> None:
    life = Life()
    life(ListReady(), KubeletHere("first"), Served(1), RegisterFailed(1, "no"), Closed(1))
    assert life(KubeletHere("first")) == []
    assert life.is_in(State.WAITING)


def test_an_answer_that_a_new_kubelet_has_crossed_is_not_believed_for_long() -> None:
    """The old kubelet may have said yes just before it died: 10 s without devices would be its legacy."""
    life = Life()
    life(ListReady(), KubeletHere("first"), Served(1), KubeletHere("second"), Registered(1))
    assert life.pause() == CROSSED_DEADLINE
    life.now += CROSSED_DEADLINE
    assert life(Tick()) == [Close(1)]
    assert life(Closed(1)) == [Serve(2)]


def test_without_a_kubelet_nothing_is_tried() -> None:
    life = Life()
    life(ListReady(), KubeletHere("first"), Served(1), KubeletGone(), RegisterFailed(1, "refused"))
    assert life(Closed(1)) == []
    assert life.is_in(State.WAITING)
    assert life.session.deadline is None
    assert life(KubeletHere("first")) == [Serve(2)], "the same one is back: connect was refused for a moment"


def test_a_refusal_for_good_is_tried_again_once_a_minute() -> None:
    """Scenarios 28 and 29."""
    life = Life()
    life(ListReady(), KubeletHere("first"), Served(1), RegisterFailed(1, "wrong name", permanent=True), Closed(1))
    assert life.pause() == REFUSED_PAUSE
    assert life.session.reason == "wrong name"


def test_the_reason_stays_until_all_is_well_again() -> None:
    life = Life()
    life(ListReady(), KubeletHere("first"), ServeFailed(1, "disk full"), Closed(1))
    life.now += life.pause()
    life(Tick(), Served(2), Registered(2))
    assert life.session.reason == "disk full"
    life(StreamOpened(2))
    assert life.session.reason is None


def test_the_watcher_route_needs_no_kubelet() -> None:
    life = Life(watcher=True)
    assert life(ListReady()) == [Serve(1)]
    assert life(Served(1)) == [Register(1)]
    assert life.pause() == UNNOTICED_DEADLINE
    life.now += UNNOTICED_DEADLINE
    assert life(Tick()) == [Close(1)]
    assert life.session.reason == "the kubelet has not picked up the socket from its plugin directory"


def test_the_watchers_deadline_runs_from_its_first_call() -> None:
    """B20: a kubelet that asks again and again without ever registering does not postpone the end."""
    life = Life(watcher=True)
    life(ListReady(), Served(1), Contacted(1))
    assert life.pause() == WATCHER_STREAM_DEADLINE
    for _ in range(3):
        life.now += 5.0
        life(Contacted(1))
    assert life(Tick()) == [Close(1)]


def test_a_kubelet_that_does_not_believe_its_stream_is_registered_with_anew() -> None:
    """F11: up to 1.36 a second instance that comes and goes leaves allocatable at 0 while our stream lives."""
    life = Life()
    life.until_connected()
    assert life(DriftDetected(1, "all devices are missing")) == [Close(1)]
    assert life.session.reason == "all devices are missing"
    assert life(Closed(1)) == [Serve(2)]
    life.until_connected()
    assert life(DriftDetected(1, "late")) == []
    assert life.is_in(State.CONNECTED)
