from __future__ import annotations

import json
from pathlib import Path

import pytest

from kdp.cluster import events
from kdp.cluster.api import ApiError
from kdp.cluster.client import KubeApi
from kdp.cluster.events import EventRecorder
from kdp_testkit.dra.server import SimulatedApiServer

from ..dra.claims.claims_world import Claims

DRIVER = "widget.example.com"


def announcer(api: Claims) -> EventRecorder:
    return EventRecorder(api, DRIVER, "node0")  # type: ignore[arg-type]


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
        f"{DRIVER}: no Event is made of what is wrong, as it could not be created: create events: 403 Forbidden"
    ]
    api.failure = None
    await told.warn("Wrong", "c")
    assert [event["message"] for event in api.events] == ["c"]


async def test_there_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_EVENTS", 3)
    api = Claims()
    told = announcer(api)
    for number in range(5):
        await told.warn("Wrong", str(number))
    assert len(api.events) == 3


async def test_a_server_has_it(tmp_path: Path) -> None:
    async with SimulatedApiServer() as server:
        config = {
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "contexts": [{"name": "x", "context": {"cluster": "c"}}],
            "current-context": "x",
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        async with KubeApi(tmp_path / "kubeconfig") as api:
            await EventRecorder(api, DRIVER, "node0").warn("Wrong", "it is wrong")
        [event] = (await server.ask("GET", "/api/v1/namespaces/default/events"))["items"]
        assert (event["reason"], event["message"]) == ("Wrong", "it is wrong")
