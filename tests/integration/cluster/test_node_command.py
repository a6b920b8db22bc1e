"""``kdp node`` against a simulated API server; the same against a real one is in tests/node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdp_testkit.dra import objects
from kdp_testkit.dra.server import SimulatedApiServer

from .conftest import Kdp

NODE = "/api/v1/nodes/node0"
DONGLE = "example.com/dongle"

PROGRAM = """
import kdp

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    def __init__(self, count: int = 2) -> None:
        self.count = count

    def discover(self):
        return [kdp.Device(id=f"w{i}", attributes={"product": "Widget 3000"}) for i in range(self.count)]

class Wrong(Widgets):
    def labels(self, devices):
        return {"example.com/widget.count": 3}
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "widgets.py").write_text(PROGRAM)
    return f"{tmp_path / 'widgets.py'}:Widgets"


async def made(server: SimulatedApiServer, *, number: str | None = None, writer: str = "kubelet") -> None:
    node = objects.node()
    node["metadata"]["labels"] = {"kubernetes.io/hostname": "node0"}
    if number is not None:
        node["status"] = {"capacity": {DONGLE: number}, "allocatable": {DONGLE: number}}
        fields: dict[str, Any] = {"f:status": {"f:capacity": {f"f:{DONGLE}": {}}}}
        node["metadata"]["managedFields"] = [{"manager": writer, "operation": "Update", "fieldsV1": fields}]
    await server.ask("POST", "/api/v1/nodes", node)


async def labels(server: SimulatedApiServer) -> dict[str, str]:
    found: dict[str, str] = (await server.ask("GET", NODE))["metadata"]["labels"]
    return found


async def numbers(server: SimulatedApiServer) -> tuple[str | None, str | None]:
    status = (await server.ask("GET", NODE))["status"]
    return status["capacity"].get(DONGLE), status["allocatable"].get(DONGLE)


async def test_labels_come_change_and_go_and_those_of_others_stay(
    server: SimulatedApiServer, run: Kdp, target: str
) -> None:
    await made(server)
    said = await run("node", "label", target, "--dry-run")
    assert "+ example.com/widget.count=2" in said
    assert "nothing was changed, as --dry-run asks" in said
    assert await labels(server) == {"kubernetes.io/hostname": "node0"}
    said = await run("node", "label", target, "--node", "node0")
    assert said.endswith("node node0 is labeled\n")
    assert await labels(server) == {
        "kubernetes.io/hostname": "node0",
        "example.com/widget.count": "2",
        "example.com/widget.product": "Widget-3000",
    }
    assert "has these labels already: 2" in await run("node", "label", target)
    said = await run("node", "label", target, "--set", "count=0")
    assert "- example.com/widget.product" in said
    assert await labels(server) == {"kubernetes.io/hostname": "node0"}
    await run("node", "label", target)
    await run("node", "label", target, "--remove")
    assert await labels(server) == {"kubernetes.io/hostname": "node0"}


async def test_a_resource_is_advertised_and_withdrawn(
    server: SimulatedApiServer, run: Kdp, as_json: Callable[..., Any]
) -> None:
    await made(server)
    said = await run("node", "advertise", f"{DONGLE}=4")
    assert f"node node0 has 4 of {DONGLE}: pods that ask for it are counted and scheduled, and get no device" in said
    assert await numbers(server) == ("4", "4")
    found = await as_json("node", "advertise", f"{DONGLE}=5")
    assert (found["before"], found["after"], found["changed"]) == ("4", "5", True)
    assert await numbers(server) == ("5", "5")
    assert "would lose" in await run("node", "withdraw", DONGLE, "--dry-run")
    assert await numbers(server) == ("5", "5")
    assert "no longer has" in await run("node", "withdraw", DONGLE)
    assert await numbers(server) == (None, None)
    assert "does not have" in await run("node", "withdraw", DONGLE)
    assert (await as_json("node", "withdraw", DONGLE))["changed"] is False
