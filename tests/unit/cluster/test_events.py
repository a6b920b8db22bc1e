from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from tests.waiting import until

from kdp.cluster import event_aggregation, events
from kdp.cluster.api import ApiError
from kdp.cluster.event_aggregation import EventTarget, Notice
from kdp.cluster.events import EventRecorder, EventWriter
from kdp.concurrency.counts import Tally

from ..dra.claims.claims_world import Claims

if TYPE_CHECKING:
    from kdp.cluster.api import NodeApi

DRIVER = "widget.example.com"


def announcer(api: Claims) -> EventRecorder:
    return EventRecorder(api, DRIVER, "node0")


async def test_each_is_said_once_and_cut() -> None:
    api = Claims()
    told = announcer(api)
    for message in ("ü" * 1000, "ü" * 1000, "short"):
        await told.warn("Wrong", message)
    assert [event["message"] for event in api.events] == ["ü" * 512, "short"]


async def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    api = Claims()
    api.failure = ApiError("create events: 403 Forbidden", status=403)
    told = announcer(api)
    for message in ("a", "b"):
        await told.warn("Wrong", message)
    assert [record.message for record in caplog.records] == [
        f"{DRIVER}: problems are not reported as Events: create events: 403 Forbidden"
    ]
    api.failure = None
    await told.warn("Wrong", "c")
    assert [event["message"] for event in api.events] == ["c"]


async def test_an_event_that_the_server_could_not_take_was_never_written() -> None:
    """As at the boot of a node, whose driver is there before the API server can be reached."""
    api = Claims()
    told = announcer(api)
    for status in (0, 503):
        api.failure = ApiError("create events: away", status=status)
        await told.warn("Wrong", "a")
    api.failure = None
    await told.warn("Wrong", "a")
    await told.warn("Wrong", "a")
    assert [event["message"] for event in api.events] == ["a"]


# -- the writer --------------------------------------------------------------------------------------------------------

NODE = EventTarget.of_node("node0")


async def test_there_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_EVENTS", 3)
    api = Claims()
    told = announcer(api)
    for number in range(5):
        await told.warn("Wrong", str(number))
    assert len(api.events) == 3


def notice(text: str = "is hot") -> Notice:
    return Notice(target=NODE, subject="gpu", reason="DeviceUnhealthy", message=text)


class Server:
    """Takes Events, or raises."""

    def __init__(self) -> None:
        self.events: dict[str, Any] = {}
        self.failure: ApiError | None = None
        self.asked = 0

    async def create_event(self, event: Any) -> Any:
        self.meet()
        name = f"e{len(self.events)}"
        self.events[name] = event
        return {"metadata": {"name": name}}

    async def patch_event(self, _: str, name: str, patch: Any) -> Any:
        self.meet()
        if name not in self.events:
            raise ApiError("patch events: 404", status=404)
        self.events[name] = {**self.events[name], **patch}

    def meet(self) -> None:
        self.asked += 1
        if self.failure is not None:
            raise self.failure


@pytest.fixture
async def writing(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Server, EventWriter]]:
    """A writer at work, without its pauses."""
    monkeypatch.setattr(event_aggregation, "PERIOD", 0.05)
    monkeypatch.setattr(events, "LONGEST_PAUSE", 0.02)
    server, writer = Server(), EventWriter("kdp", "node0")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run, cast("NodeApi", server))
        yield server, writer
        tasks.cancel_scope.cancel()


async def test_a_repetition_is_counted_and_an_expired_event_is_made_anew(writing: tuple[Server, EventWriter]) -> None:
    server, writer = writing
    writer.tell([notice(), notice()])
    await until(lambda: server.events)
    [event] = server.events.values()
    assert (event["count"], event["type"], event["reportingComponent"]) == (2, "Warning", "kdp")
    writer.tell([notice()])
    await until(lambda: server.events["e0"]["count"] == 3)
    del server.events["e0"]
    writer.tell([notice()])
    await until(lambda: server.events)
    assert len(server.events) == 1


@pytest.mark.parametrize("status", [0, 503])
async def test_what_may_pass_is_tried_until_it_works(
    writing: tuple[Server, EventWriter], caplog: pytest.LogCaptureFixture, status: int
) -> None:
    server, writer = writing
    server.failure = ApiError("create events: away", status=status)
    writer.tell([notice()])
    await until(lambda: server.asked >= 3)
    writer.tell([notice("is cold")])
    server.failure = None
    await until(lambda: server.events)
    assert [event["message"] for event in server.events.values()] == ["is cold"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_what_comes_of_each_notice_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_aggregation, "PERIOD", 0.05)
    monkeypatch.setattr(events, "LONGEST_PAUSE", 0.02)
    counts, server = Tally(), Server()
    writer = EventWriter("kdp", "node0", counts)

    def counted() -> dict[str, int]:
        return {result: count for (result,), count in counts.counts.items()}

    assert counted() == dict.fromkeys(events.RESULTS, 0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run, cast("NodeApi", server))
        writer.tell([notice("is cold"), notice(), notice()])
        await until(lambda: counted()["created"])
        assert counted() == dict.fromkeys(events.RESULTS, 0) | {"created": 1, "suppressed": 2}
        writer.tell([notice()])
        await until(lambda: counted()["repeated"])
        server.failure = ApiError("create events: away", status=503)
        writer.tell([notice()])
        await until(lambda: counted()["unanswered"] >= 2)
        server.failure = ApiError("create events: 403 Forbidden", status=403)
        await until(lambda: counted()["refused"])
        tasks.cancel_scope.cancel()
    found = counted()
    assert found.pop("unanswered") >= 2
    assert found == {"created": 1, "repeated": 1, "suppressed": 2, "refused": 1}


async def test_a_refusal_is_for_good(writing: tuple[Server, EventWriter], caplog: pytest.LogCaptureFixture) -> None:
    server, writer = writing
    server.failure = ApiError("create events: 403 Forbidden", status=403)
    writer.tell([notice()])
    await until(lambda: server.asked)
    server.failure = None
    writer.tell([notice("is cold")])
    await until(lambda: server.events)
    assert [event["message"] for event in server.events.values()] == ["is cold"]
    assert len(caplog.records) == 1
