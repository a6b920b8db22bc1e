"""The log: names, order, waiting, and the story that a failed wait tells."""

from __future__ import annotations

import anyio

from kdp.testing import EventLog, events
from kdp_testkit.patience import PATIENCE


def test_two_events_were_missing_from_the_reference() -> None:
    """Its page has the names of ``__all__``."""
    public = {name for name, found in vars(events).items() if isinstance(found, type) and not name.startswith("_")}
    kinds = {name for name in public if issubclass(getattr(events, name), events.Event)}
    assert kinds <= set(events.__all__)


def test_payloads_are_not_printed() -> None:
    event = events.ListReceived(resource="r", socket_path="/s", healthy=1, unhealthy=0, size_bytes=3, payload=b"abc")
    assert "payload" not in event.fields()
    assert "abc" not in repr(event)


async def test_events_keep_their_order_and_reach_the_listener() -> None:
    heard: list[events.Event] = []
    log = EventLog(heard.append)
    first, second = events.PodDeleted(pod="a"), events.KubeletStopped(how="stopped")
    log.add(first)
    log.add(second)
    assert list(log) == heard == [first, second]
    assert (len(log), log[-1]) == (2, second)
    assert log.of(events.PodDeleted) == [first]
    assert log.of(events.StreamOpened, resource="r") == []


async def test_a_change_wakes_everybody_who_waits() -> None:
    log = EventLog()
    woken = []

    async def wait(number: int) -> None:
        await log.change()
        woken.append(number)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, 1)
            tasks.start_soon(wait, 2)
            await anyio.lowlevel.checkpoint()
            assert woken == []
            log.touch()
    assert sorted(woken) == [1, 2]


def test_the_story_has_relative_times_and_an_end() -> None:
    log = EventLog()
    assert "nothing happened" in log.story()
    log.add(events.PodDeleted(time=10.0, pod="a"))
    log.add(events.PodDeleted(time=10.5, pod="b"))
    assert log.story().splitlines() == [
        "    +0.0000 s  pod_deleted pod='a'",
        "    +0.5000 s  pod_deleted pod='b'",
    ]
    assert log.story(last=1).splitlines()[0] == "  … 1 events before"
