"""Odd answers of the API server: each is refused with an `ApiError`, or every caller can read it."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import HOSTILE, as_bytes, damaged, fuzz, replaced

import kdp
from kdp.cluster import shapes
from kdp.cluster.answers import event_of, object_of, refused
from kdp.cluster.api import MOST_WAIT, ApiError, ClusterApi, OddAnswerError, Slices, WatchEvent
from kdp.cluster.checked import checked
from kdp.dra.claims.plan import plan_of, result_keys
from kdp.dra.claims.status import with_ready
from kdp.dra.publishing.actions import Create, Delete, ReadOwner, ReadSlices, ReadVersion, Update, Wait, Watch
from kdp.dra.publishing.exclusivity import offered
from kdp.dra.publishing.planner import Planner
from kdp.dra.publishing.slices import Pool
from kdp.errors import ClaimError
from kdp.model.claims import Claim

from ..dra.memory_api import MemoryServer
from ..strategies import effort

DRIVER = "gpu.example.com"
NODE: dict[str, Any] = {
    "metadata": {"name": "node-0", "uid": "u1"},
    "status": {"allocatable": {"example.com/gpu": "8"}},
}
SLICE: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {
        "name": "00000-gpu.example.com-node-0-x",
        "uid": "u2",
        "resourceVersion": "7",
        "ownerReferences": [{}],
    },
    "spec": {
        "driver": DRIVER,
        "nodeName": "node-0",
        "pool": {"name": "node-0", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "g0",
                "attributes": {"a": {"string": "x"}},
                "taints": [{"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}],
            }
        ],
    },
}
CLAIM: dict[str, Any] = {
    "metadata": {"name": "c", "namespace": "n", "uid": "u3", "annotations": {"x": "y"}, "resourceVersion": "8"},
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "request": "r",
                        "driver": DRIVER,
                        "pool": "node-0",
                        "device": "g0",
                        "adminAccess": None,
                        "consumedCapacity": {"mem": "1Gi"},
                        "tolerations": [{"key": "k", "operator": "Exists"}],
                    }
                ],
                "config": [{"source": "FromClaim", "requests": ["r"], "opaque": {"driver": "other", "parameters": {}}}],
            }
        },
        "devices": [{"driver": DRIVER, "pool": "node-0", "device": "g0", "conditions": [{"type": "Ready"}]}],
    },
}
LIST: dict[str, Any] = {"kind": "ResourceSliceList", "metadata": {"resourceVersion": "9"}, "items": [SLICE]}
EVENT: dict[str, Any] = {"type": "MODIFIED", "object": SLICE}
STATUS: dict[str, Any] = {
    "kind": "Status",
    "status": "Failure",
    "message": "no",
    "reason": "Expired",
    "code": 410,
    "details": {"retryAfterSeconds": 3},
}


def everywhere(document: Any, value: Any) -> Iterator[Any]:
    """Yield the document with the value at each place, and without each place."""

    def places(part: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        yield path
        held: Any = part
        held = held.items() if isinstance(part, dict) else enumerate(held) if isinstance(part, list) else ()
        for key, each in held:
            yield from places(each, (*path, key))

    for path in places(document, ()):
        if not path:
            yield value
            continue
        for is_removed in (False, True):
            made = copy.deepcopy(document)
            holder = made
            for key in path[:-1]:
                holder = holder[key]
            if is_removed:
                del holder[path[-1]]
            else:
                holder[path[-1]] = copy.deepcopy(value)
            yield made


def read_claim(item: Any) -> None:
    shapes.check(item, shapes.CLAIM)
    claim = Claim(namespace="n", name="c", uid="u3")
    with suppress(ClaimError):
        result_keys(item, claim, DRIVER)
    with suppress(ClaimError):
        plan_of(
            item,
            claim,
            driver=DRIVER,
            pool="node-0",
            devices={"g0": kdp.Device(id="g0")},
            resource_of=lambda _: "example.com/gpu",
            declared=None,
        )
    json.dumps(with_ready(item, DRIVER, [], now="2026-01-01T00:00:00Z"))


def read_node(item: Any) -> None:
    shapes.check(item, shapes.NODE)
    offered(item, ["example.com/gpu"])
    planned(owner=item)


def read_slices(item: Any) -> None:
    shapes.check(item, [shapes.SLICE])
    planned(stored=item)


def read_event(item: Any) -> None:
    shapes.check(item, {"type": str, "object": shapes.SLICE})
    planned(event=item)


def planned(*, stored: Any = (), owner: Any = None, event: Any = None) -> None:
    """Have a planner meet these objects, and plan until it waits."""
    planner = Planner(Pool.of_node(DRIVER, "node-0"), owner="node-0")
    planner.want((kdp.Device(id="g0", attributes={"a": "x"}),), {}, {})
    server, now = MemoryServer(), 0.0
    for _ in range(12):
        now += 1.0
        match step := planner.next(now):
            case ReadVersion():
                planner.done(step, "v1.37.1", now)
            case ReadOwner():
                planner.done(step, owner or NODE, now)
            case ReadSlices():
                planner.done(step, Slices(copy.deepcopy(stored), "9"), now)
            case Watch():
                if event is not None:
                    planner.observed(WatchEvent("MODIFIED", {**event["object"]}), now)
            case Create(item) | Update(item):
                planner.done(step, server.put(item), now)
            case Delete(_):
                planner.done(step, None, now)
            case Wait():
                pass
        assert planner.status


READERS: dict[str, tuple[Any, Callable[[Any], None]]] = {
    "claims": (CLAIM, read_claim),
    "nodes": (NODE, read_node),
    "slices": ([SLICE], read_slices),
    "events": (EVENT, read_event),
}


@pytest.mark.parametrize("name", READERS)
def test_a_good_answer_with_something_odd_at_any_place(name: str) -> None:
    document, read = READERS[name]
    read(copy.deepcopy(document))
    values: tuple[object, ...] = (None, 1.5, "x", [], {}, 10**300, "\ud800", "../../x", True)
    for value in values:
        for odd in everywhere(document, value):
            with suppress(shapes.ShapeError):
                read(odd)


@pytest.mark.parametrize("name", READERS)
def test_a_fuzzed_object(name: str) -> None:
    document, read = READERS[name]

    @effort(150)
    @given(replaced([document]))
    def run(odd: Any) -> None:
        with suppress(shapes.ShapeError):
            read(odd)

    run()


def test_fuzzed_bytes_are_an_object_or_an_api_error() -> None:
    seeds = [json.dumps(each).encode() for each in (CLAIM, NODE, LIST, EVENT, STATUS)]
    readers: tuple[Callable[[bytes], object], ...] = (
        lambda data: object_of(data, "get nodes x"),
        lambda data: event_of(data, "watch resourceslices"),
        lambda data: refused(404, "Not Found", data, "get nodes x", retry_after="1"),
    )
    for read in readers:
        fuzz("answers", read, (ApiError,), damaged(seeds), examples=60)


@effort(150)
@given(replaced([STATUS, {"type": "ERROR", "object": STATUS}]))
def test_a_fuzzed_status(odd: Any) -> None:
    data = as_bytes(odd)
    with suppress(ApiError):
        event_of(data, "watch resourceslices")
    error = refused(429, "Too Many", data, "get nodes x", retry_after=None)
    assert error.retry_after is None or 0 <= error.retry_after <= MOST_WAIT


@pytest.mark.parametrize("content", [b"404 page not found\n", b"{}"])
def test_a_404_of_a_proxy_does_not_say_that_the_object_is_gone(content: bytes) -> None:
    assert refused(404, "Not Found", content, "get resourceclaims n/c", retry_after=None).status == 0


def test_a_404_of_the_api_server_says_so() -> None:
    content = json.dumps({"kind": "Status", "status": "Failure", "code": 404}).encode()
    assert refused(404, "Not Found", content, "get resourceclaims n/c", retry_after=None).status == 404


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("nan", None),
        ("-1", 0.0),
        ("1e9", MOST_WAIT),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MOST_WAIT),
        ("soon", None),
    ],
)
def test_retry_after_is_bounded(header: str, seconds: float | None) -> None:
    assert refused(429, "Too Many", b"{}", "get nodes x", retry_after=header).retry_after == seconds


@given(st.floats() | st.integers())
def test_no_error_asks_to_wait_for_ever(seconds: float) -> None:
    with suppress(OverflowError):
        waits = ApiError("no", retry_after=seconds).retry_after
        assert waits is None or 0 <= waits <= MOST_WAIT


class Odd:
    """An API whose next answer is given."""

    answer: Any = None

    async def _answered(self, *_: Any, **__: Any) -> Any:
        return self.answer

    version = node = claim = update_claim_status = slices = create_slice = update_slice = _answered

    async def watch_slices(self, **_: Any) -> Any:
        yield self.answer


async def test_odd_answers_are_one_error_line_until_they_are_right(caplog: pytest.LogCaptureFixture) -> None:
    odd = Odd()
    api = checked(cast("ClusterApi", odd))
    assert checked(api) is api
    caplog.set_level(logging.INFO, "kdp.cluster.answer_checks")
    more: list[Any] = [{"metadata": {}}, {"metadata": {"uid": 1}}]
    for value in [*HOSTILE, *more]:
        odd.answer = value
        with pytest.raises(OddAnswerError, match="check the proxies"):
            await api.claim("n", "c")
    odd.answer = copy.deepcopy(CLAIM)
    assert (await api.claim("n", "c"))["metadata"]["uid"] == "u3"
    levels = [record.levelname for record in caplog.records]
    assert levels == ["ERROR", "INFO"]


async def test_events_and_writes_are_checked() -> None:
    odd = Odd()
    api = checked(cast("ClusterApi", odd))
    for event in (WatchEvent(cast("Any", "EATEN"), SLICE), WatchEvent("ADDED", {}), WatchEvent("BOOKMARK", {})):
        odd.answer = event
        with pytest.raises(OddAnswerError):
            async with aclosing(api.watch_slices(driver=DRIVER, resource_version="1")) as events:
                await anext(events)
    odd.answer = copy.deepcopy(SLICE)
    odd.answer["metadata"]["name"] = "another"
    with pytest.raises(OddAnswerError, match="as it was sent"):
        await api.create_slice(SLICE)
    odd.answer = Slices([{}], "1")
    with pytest.raises(OddAnswerError, match=r"items\[0\].metadata is missing"):
        await api.slices(driver=DRIVER)
