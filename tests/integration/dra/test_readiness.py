"""What a DRA driver tells the probe and its claims, between the simulated API server and the simulated kubelet."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.unit.dra.claims.claims_world import Widgets

from kdp.dra.plugin import DriverStatus
from kdp.dra.publishing import actions, feed
from kdp.dra.publishing.actions import PublisherStatus
from kdp_testkit.dra.objects import node
from kdp_testkit.patience import PATIENCE

from ..fetching import fetch
from .helpers import CLAIMS, DRIVER, SLICES, serving


class Probe:
    """Asks the probe of the process, which says in its log where it is."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def _ask(self) -> tuple[int, Any]:
        found = re.search(r"http://[\d.]+:\d+", self._caplog.text)
        if found is None:
            return 0, {}
        status, _, body = fetch(f"{found[0]}/readyz")
        return status, json.loads(body)

    async def until(self, status: int, *words: str) -> Any:
        """Wait until it answers so; return what it says of the driver."""
        with anyio.fail_after(PATIENCE):
            while True:
                found, body = await anyio.to_thread.run_sync(self._ask)
                if found == status and all(word in json.dumps(body) for word in words):
                    return body["drivers"][DRIVER]
                await anyio.sleep(0.02)


async def test_a_driver_is_ready_when_its_devices_are_published_and_tells_claims(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feed, "LOOK_PAUSE", 0.02)
    caplog.set_level("INFO")
    probe = Probe(caplog)
    item = node()
    item["status"]["allocatable"] = {Widgets.resource: "2"}
    async with serving(folder, Widgets("w0"), node=item, http="127.0.0.1:0", device_status="on") as driver:
        server = driver.server
        told = await probe.until(503, "still offers 2 of example.com/widget by a device plugin")
        assert (told["state"], told["slices"]) == ("registered", {"generation": 0, "count": 0, "problem": None})
        assert (await server.ask("GET", SLICES))["items"] == []
        item["status"]["allocatable"] = {Widgets.resource: "0"}
        await server.ask("PUT", "/api/v1/nodes/node0/status", item)
        told = await probe.until(200)
        assert (told["state"], told["reason"], told["slices"]) == (
            "published",
            None,
            {"generation": 1, "count": 1, "problem": None},
        )
        assert len((await server.ask("GET", SLICES))["items"]) == 1
        await driver.call("NodePrepareResources", "c", await driver.claim("c", "w0"))
        with anyio.fail_after(PATIENCE):
            while not (await server.ask("GET", f"{CLAIMS}/c"))["status"].get("devices"):  # noqa: ASYNC110 - a server's
                await anyio.sleep(0.02)
        server.faults.away()
        told = await probe.until(200, "was not reached")
        assert (told["state"], told["reason"]) == ("published", None), "a later problem is told, and not fatal"


async def test_a_driver_whose_slices_were_all_gone_was_ready_and_published(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody deleted them, and the API server refused to create them again: no pod could get a device."""
    monkeypatch.setattr(actions, "MOMENT", 0.05)
    caplog.set_level("INFO")
    probe = Probe(caplog)
    async with serving(folder, Widgets("w0"), http="127.0.0.1:0") as driver:
        server = driver.server
        await probe.until(200)
        server.faults.refused(403, "quota", method="POST", path="resourceslices", times=None)
        for item in (await server.ask("GET", SLICES))["items"]:
            await server.ask("DELETE", f"{SLICES}/{item['metadata']['name']}")
        told = await probe.until(503, "has no ResourceSlice of these devices any more", "quota")
        assert told["state"] == "registered"
        server.faults.clear()
        told = await probe.until(200)
        assert (told["state"], told["reason"]) == ("published", None)


def test_a_missing_publication_counts_as_its_cause() -> None:
    """`kdp_not_ready{cause="publication"}` stayed 0 without a slice."""
    gone = PublisherStatus(generation=1, slices=1, stored=0, behind_since=0.0)
    assert gone.is_missing
    assert gone.is_behind(actions.MOMENT + 1)
    assert not gone.is_behind(actions.MOMENT - 1), "a kubelet that starts deletes them for a moment"
    driver = DriverStatus(
        driver=DRIVER, is_registered=True, reason=None, devices=1, healthy=1, publication=gone, is_missing=True
    )
    assert (driver.is_published, driver.is_ready, driver.state) == (False, False, "registered")
