from __future__ import annotations

import anyio
import pytest

import kdp
from kdp.cluster.api import ApiError
from kdp.dra.publishing import feed
from kdp.dra.publishing.feed import Exclusivity, offered

from ..claims.claims_world import Claims, Widgets, until

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


async def test_a_node_that_offers_is_looked_at_until_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "LOOK_PAUSE", 0.01)
    api, told = Claims(), list[str]()
    exclusive = Exclusivity(api, "node0", Widgets())  # type: ignore[arg-type]
    api.failure = ApiError("get nodes: 403 Forbidden", status=403)
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            assert await exclusive.wait([kdp.Device(id="b", resource="example.com/b")], report=told.append)
            told.append("vacant")

        tasks.start_soon(wait)
        await until(lambda: api.nodes_asked > 2)
        assert set(told) == {
            f"whether a device plugin still offers example.com/b, {NAME} is not known: get nodes: 403 Forbidden"
        }
        told.clear()
        api.failure = None
        api.allocatable = {NAME: "2", "example.com/b": "1", "example.com/other": "9"}
        await until(lambda: told)
        assert told[-1].startswith(
            f"node node0 still offers 1 of example.com/b and 2 of {NAME} by a device plugin, and a node must "
            "offer devices in one way only; drain the node"
        )
        api.allocatable = {NAME: "2"}
        asked = api.nodes_asked
        await until(lambda: api.nodes_asked > asked + 2)
        assert "vacant" not in told
        api.allocatable = {NAME: "0"}
        await until(lambda: told[-1] == "vacant")
    asked = api.nodes_asked
    assert not await exclusive.wait([], report=print)
    assert api.nodes_asked == asked
