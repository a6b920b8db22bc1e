"""The status page of a DRA driver: its slices, its claims, and what became of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from tests.unit.dra.claims.claims_world import Widgets

from kdp.admin.page.shell import StatusPage
from kdp.admin.page.view import AskedPlugin
from kdp.command.asking import ask
from kdp.operations.status_document import StatusDocument

from .helpers import DRIVER, serving


async def until(path: Path, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Wait until the status document is as it should be."""
    text = ""
    with anyio.move_on_after(30):
        while True:
            code, text = await anyio.to_thread.run_sync(ask, str(path), "/status.json")
            if code == 0 and condition(found := json.loads(text)):
                return dict(found)
            await anyio.sleep(0.05)
    raise AssertionError(f"the status did not become as expected; it is:\n{text}")


def happened(kind: str, text: str = "", devices: list[str] | None = None) -> Callable[[dict[str, Any]], Any]:
    return lambda found: any(
        each["kind"] == kind
        and each["subject"] == DRIVER
        and text in each["text"]
        and each["devices"] == (devices or [])
        for each in found["events"]
    )


async def test_claims_and_slices_are_on_the_page(folder: Path) -> None:
    own = folder / "own.sock"
    async with serving(folder, Widgets("w0", "w1"), socket=own) as served:
        await until(own, happened("registered"))
        found = await until(own, lambda found: found["ready"])
        [driver] = found["resources"]
        assert (driver["state"], driver["claims"], driver["slices"]["count"]) == ("published", [], 1)
        assert driver["since"] is not None
        assert found["kubelet"] is None

        uid = await served.claim("c", "w0")
        await served.call("NodePrepareResources", "c", uid)
        found = await until(own, happened("prepared", "claim default/c", ["w0"]))
        [driver] = found["resources"]
        assert driver["claims"] == [
            {"name": "default/c", "uid": uid, "devices": ["w0"], "is_prepared": True, "is_over": False}
        ]
        assert {each["id"]: each["held_by"] for each in driver["listed"]} == {"w0": "claim default/c", "w1": None}
        await served.call("NodePrepareResources", "c", "another-uid")
        await until(own, happened("failed", "claim default/c: "))
        found = await until(own, lambda found: True)
        page = StatusPage().file([AskedPlugin(place="", status=StatusDocument.from_json(found), at=datetime.now(UTC))])
        for text in ("1 slice published", "Claims of", "default/c", "Claim failed", "Prepared"):
            assert text in page
        await served.call("NodeUnprepareResources", "c", uid)
        found = await until(own, happened("unprepared", "claim default/c"))
        assert found["resources"][0]["claims"] == []
