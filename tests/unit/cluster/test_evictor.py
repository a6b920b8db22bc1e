"""What the API server's answers mean for an eviction."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
from tests.unit.cluster.test_eviction import facts

from kdp.cluster.api import ApiError, OddAnswerError
from kdp.cluster.eviction import Description, EvictionPolicy, PodName, Say
from kdp.cluster.evictor import RESULTS, Evictor, described, outcome_of
from kdp.concurrency.counts import Tally

READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
POD = PodName("ns", "p")


def pod(**more: Any) -> dict[str, Any]:
    return {"metadata": {"uid": "u"}, "spec": {"nodeName": "node0"}, "status": {"phase": "Running"}, **more}


@pytest.mark.parametrize(
    ("node", "is_ready"),
    [
        (READY, True),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, False),
        ({}, False),
    ],
)
def test_a_node_is_ready_if_it_says_so(node: dict[str, Any], is_ready: bool) -> None:
    assert described(pod(), node, "node0") == Description(uid="u", is_node_ready=is_ready)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metadata": {"uid": "u", "annotations": {"kubernetes.io/config.mirror": "x"}}}, "it is a static pod"),
        ({"spec": {"nodeName": "node1"}}, "a pod of that name is on another node"),
        ({"metadata": {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, "it ends already"),
        ({"status": {"phase": "Failed"}}, "it has ended already"),
    ],
)
def test_some_pods_are_left_alone(changes: dict[str, Any], words: str) -> None:
    obstacle = described(pod(**changes), READY, "node0").obstacle
    assert obstacle is not None
    assert obstacle.startswith(words)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ApiError("", status=404), "gone"),
        (ApiError("", status=429), "blocked"),
        (ApiError("", status=403), "failed"),
        (ApiError("", status=504), "unknown"),
        (ApiError("not reached"), "unknown"),
        (OddAnswerError("create pods/eviction", "it is a page"), "unknown"),
    ],
)
def test_what_a_refusal_means(error: ApiError, outcome: str) -> None:
    assert outcome_of(error) == outcome


class Server:
    """Answers one request to evict."""

    def __init__(self, status: int | None) -> None:
        self._status = status

    async def evict(self, *_: Any, **__: Any) -> None:
        if self._status is not None:
            raise ApiError("no", status=self._status)


@pytest.mark.parametrize(
    ("status", "is_dry", "result"),
    [
        (None, False, "accepted"),
        (None, True, "dry_run"),
        (429, False, "blocked"),
        (404, False, "gone"),
    ],
)
async def test_what_comes_of_a_request_is_counted(status: int | None, is_dry: bool, result: str) -> None:
    counts = Tally()
    policy = EvictionPolicy(after=1.0, limit=1, is_dry=is_dry)
    evictor = Evictor("node0", policy, lambda _: None, counts=counts)
    assert counts.counts == {(each,): 0 for each in RESULTS}
    planner, now = evictor._planner, time.monotonic()
    planner.observe(facts(), now - 10)
    planner.step(now)
    planner.described(PodName("ns", "p0"), Description(uid="u", is_node_ready=True), asked_at=now, now=now)
    planner.observe(facts(now + 1), now + 1)
    planner.step(now + 1)
    await evictor._evict(cast("Any", Server(status)), PodName("ns", "p0"), "u", "why")
    assert counts.counts == {(each,): each == result for each in RESULTS}


def test_hostile_words_reach_the_log_escaped(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Say] = []
    evictor = Evictor("node0", EvictionPolicy(after=1.0, limit=1), told.append)
    evictor._say(Say(POD, "u", "EvictionBlocked", "no\x1b[2J\nINFO all is well"))
    evictor._say(Say(POD, "u", "NotEvicted", "it ends already", is_warning=False))
    assert caplog.records[0].getMessage() == r"pod ns/p: no\x1b[2J\nINFO all is well"
    assert [say.reason for say in told] == ["EvictionBlocked"]


async def test_a_node_that_the_api_server_does_not_know_was_a_pod_that_is_gone() -> None:
    """As with a misspelt --node-name: no pod was evicted, and nothing was said."""
    told: list[Say] = []
    evictor = Evictor("nod0", EvictionPolicy(after=1.0, limit=1), told.append)
    planner, now, name = evictor._planner, time.monotonic(), PodName("ns", "p0")
    planner.observe(facts(), now - 10)
    planner.step(now)

    class Lost:
        async def node(self, name: str) -> Any:
            raise ApiError(f'nodes "{name}" not found', status=404)

    await evictor._describe(cast("Any", Lost()), name)
    steps = planner.step(time.monotonic())
    assert any(isinstance(each, Say) and 'nodes "nod0" not found' in each.text for each in steps), steps
