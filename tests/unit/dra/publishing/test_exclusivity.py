from __future__ import annotations

import pytest

import kdp
from kdp.cluster.api import ApiError
from kdp.dra.publishing import feed
from kdp.dra.publishing.feed import Exclusivity, offered

from ..claims.claims_world import Claims, Widgets

NAME = "example.com/widget"


@pytest.mark.parametrize(
    ("node", "amount"),
    [
        ({}, None),
        ({"status": {"allocatable": {NAME: "0"}, "capacity": {NAME: "4"}}}, None),
        ({"status": {"allocatable": {NAME: "1k"}}}, "1k"),
        ({"status": {"allocatable": {NAME: 3}}}, "3"),
    ],
)
def test_what_a_node_offers(node: dict[str, object], amount: str | None) -> None:
    assert offered(node, [NAME]) == ({} if amount is None else {NAME: amount})


async def test_a_node_that_offers_is_looked_at_until_it_does_not() -> None:
    api, devices = Claims(), [kdp.Device(id="b", resource="example.com/b")]
    exclusive = Exclusivity(api, "node0", Widgets())  # type: ignore[arg-type]
    api.failure = ApiError("get nodes: 403 Forbidden", status=403, retry_after=9.0)
    assert await exclusive.obstacle(devices) == (
        f"whether a device plugin still offers example.com/b, {NAME} is not known: get nodes: 403 Forbidden"
    )
    assert exclusive.pause == 9.0
    api.failure = None
    api.allocatable = {NAME: "2", "example.com/b": "1", "example.com/other": "9"}
    why = await exclusive.obstacle(devices)
    assert why is not None
    assert why.startswith(
        f"node node0 still offers 1 of example.com/b and 2 of {NAME} by a device plugin, and a node must "
        "offer devices in one way only; drain the node"
    )
    assert exclusive.pause == feed.LOOK_PAUSE
    api.allocatable = {NAME: "2"}
    assert await exclusive.obstacle(devices)
    api.allocatable = {NAME: "0"}
    assert await exclusive.obstacle(devices) is None
    asked = api.nodes_asked
    assert await exclusive.obstacle([]) is None
    assert api.nodes_asked == asked
