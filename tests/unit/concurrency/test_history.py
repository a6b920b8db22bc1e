"""The history: the last events, in bounded memory."""

from __future__ import annotations

import tracemalloc

import pytest

from kdp.concurrency.history import LOOK_BACK, MOST_DEVICES, MOST_EVENTS, History


def told(history: History) -> list[tuple[str, str, int]]:
    return [(event.kind, event.text, event.count) for event in history.events]


def test_the_last_events_are_kept_and_the_oldest_comes_first() -> None:
    history = History()
    for number in range(MOST_EVENTS + 3):
        history.add("fault", "example.com/w", f"fault {number}")
    texts = [event.text for event in history.events]
    assert texts == [f"fault {number}" for number in range(3, MOST_EVENTS + 3)]


def test_an_event_that_comes_again_is_counted_and_is_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr("kdp.concurrency.history.time.time", lambda: next(times))
    history = History()
    history.add("refused", "example.com/w", "not today", ["w0"])
    history.add("refused", "example.com/w", "not today", ["w1"])
    history.add("refused", "example.com/w", "not today", ["w0"])
    assert [(event.devices, event.count, event.at) for event in history.events] == [
        (("w1",), 1, 2.0),
        (("w0",), 2, 3.0),
    ]


def test_an_event_that_was_long_ago_is_another_one() -> None:
    history = History()
    history.add("fault", text="first")
    for number in range(LOOK_BACK):
        history.add("gone", text=str(number))
    history.add("fault", text="first")
    assert [(kind, count) for kind, text, count in told(history) if text == "first"] == [("fault", 1), ("fault", 1)]


def test_one_that_fails_again_and_again_leaves_the_others_their_places() -> None:
    history = History()
    history.add("fault", text="the fault that matters")
    for number in range(1_000):
        history.add("failed", text=f"claim {number % 3}")
    assert ("fault", "the fault that matters", 1) in told(history)
    assert len(history.events) == 4


@pytest.mark.thorough
def test_its_memory_has_a_bound_whatever_is_added() -> None:
    tracemalloc.start()
    try:
        history = History()
        for number in range(MOST_EVENTS + 50):
            history.add(
                "fault", f"r{number}" * 1000, f"{number} \u202e\n" * 10_000, [f"{number}-{i}" * 50 for i in range(500)]
            )
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 4 << 20
    event = history.events[-1]
    assert "\u202e" not in event.text
    assert "\n" not in event.text
    assert (len(event.devices), event.more) == (MOST_DEVICES, 500 - MOST_DEVICES)
