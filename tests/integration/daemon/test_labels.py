"""``--labels nfd`` of a plugin's process: the file that Node Feature Discovery reads, and what the status says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from tests.waiting import until

from kdp.command.asking import ask
from kdp.testing import SimulatedKubelet
from kdp_testkit.patience import PATIENCE

Start = Callable[..., AbstractAsyncContextManager[Any]]

RESOURCE = "example.com/widget"

PROGRAM = """
import pathlib
import kdp

HERE = pathlib.Path(__file__).parent

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"
    poll_interval = 0.05

    def discover(self):
        count = 3 if (HERE / "more").exists() else 2
        return [kdp.Device(id=f"w{i}", attributes={"product": "Widget 3000 (rev A)"}) for i in range(count)]

if __name__ == "__main__":
    kdp.run(Widgets())
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "features.d").mkdir()
    return {
        "KDP_LABELS": "nfd",
        "KDP_LABELS_DIR": str(tmp_path / "features.d"),
        "KDP_SOCKET": str(tmp_path / "own.sock"),
        "KDP_HTTP": "127.0.0.1:0",
    }


def labels(tmp_path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in (tmp_path / "features.d").glob("[!.]*"):
        lines = [line.partition("=") for line in each.read_text().splitlines() if not line.startswith("#")]
        found.update({name: value for name, _, value in lines})
    return found


async def reason(tmp_path: Path) -> str | None:
    code, text = await to_thread.run_sync(ask, str(tmp_path / "own.sock"), "/status.json")
    assert code == 0, text
    [file] = json.loads(text)["labels"]["files"]
    told: str | None = file["reason"]
    return told


TWO = {f"{RESOURCE}.count": "2", f"{RESOURCE}.product": "Widget-3000-rev-A"}


async def test_the_file_follows_the_devices_and_vanishes_with_the_plugin(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, environment: dict[str, str]
) -> None:
    async with start(PROGRAM, **environment) as plugin:
        await kubelet.until(allocatable={RESOURCE: 2})
        await until(lambda: labels(tmp_path) == TWO, "the labels are written")
        assert await reason(tmp_path) is None
        (tmp_path / "more").touch()
        await until(lambda: labels(tmp_path)[f"{RESOURCE}.count"] == "3", "the labels follow")
        code, seconds = await plugin.stop()
    assert (code, os.listdir(tmp_path / "features.d")) == (0, [])
    assert seconds < PATIENCE
