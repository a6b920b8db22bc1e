"""Odd answers of the API server: bytes that are no object, and refusals that are not its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import as_bytes, damaged, fuzz, replaced

from kdp.cluster.answers import event_of, object_of, refused
from kdp.cluster.api import MOST_WAIT, ApiError, OddAnswerError

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
        ("Fri, 31 Dec 9999 23:59:59 GMT", None),
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


def test_an_object_of_another_kind_is_none() -> None:
    """A proxy's ``{}`` was a claim without a UID, so that the pod's devices were taken away."""
    with pytest.raises(OddAnswerError, match="it must be a ResourceClaim, this is"):
        object_of(b"{}", "get resourceclaims n/c", "ResourceClaim")
