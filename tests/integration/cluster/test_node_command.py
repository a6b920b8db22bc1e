"""``kdp node`` against a simulated API server; the same against a real one is in tests/node."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdp.cli import asking
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


async def test_a_conflicting_label_is_refused_with_its_owner(
    server: SimulatedApiServer, run: Kdp, as_json: Callable[..., Any], target: str
) -> None:
    await made(server)
    node = await server.ask("GET", NODE)
    node["metadata"]["labels"]["example.com/widget.count"] = "9"
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {"f:example.com/widget.count": {}}}}
    node["metadata"]["managedFields"] = [{"manager": "kubectl-label", "operation": "Update", "fieldsV1": fields}]
    await server.ask("PUT", NODE, node)
    said = await run("node", "label", target, code=1)
    assert "example.com/widget.count: node node0 has '9', which kubectl-label owns; this would set '2'" in said
    assert (await labels(server))["example.com/widget.count"] == "9"
    found = await as_json("node", "label", target, code=1)
    assert found["conflicts"] == [{"label": "example.com/widget.count", "value": "9", "owners": ["kubectl-label"]}]
    assert (found["is_applied"], found["manager"]) == (False, "kdp-label-example.com/widget")
    await run("node", "label", target, "--force")
    assert (await labels(server))["example.com/widget.count"] == "2"


async def test_without_a_target_the_running_plugin_is_asked(
    server: SimulatedApiServer, run: Kdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(server)
    status: dict[str, Any] = {"labels": None, "resources": [{"name": "example.com/widget"}], "node": None}
    monkeypatch.setattr(asking, "ask", lambda *_: (0, json.dumps(status)))
    said = await run("node", "label", "--socket", "/run/kdp/plugin.sock", code=2)
    assert "the plugin runs with --labels off" in said
    status["labels"] = {"files": [{"labels": {"example.com/widget.count": "7"}}]}
    await run("node", "label", "--socket", "/run/kdp/plugin.sock")
    assert (await labels(server))["example.com/widget.count"] == "7"
    said = await run("node", "label", "--socket", "/run/kdp/plugin.sock", "--set", "count=1", code=2)
    assert "are for a TARGET" in said


async def test_the_node_must_be_named_if_there_are_several(server: SimulatedApiServer, run: Kdp, target: str) -> None:
    said = await run("node", "advertise", f"{DONGLE}=4", code=2)
    assert "--node is missing, and the cluster has no node" in said
    for name in ("a", "b"):
        await server.ask("POST", "/api/v1/nodes", objects.node(name))
    said = await run("node", "label", target, code=2)
    assert "the cluster has several: a, b; name one of them" in said
    assert "must be the name of a node" in await run("node", "label", target, "--node", "../pods", code=2)
    assert "404" in await run("node", "label", target, "--node", "c", code=1)


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


async def test_a_name_that_a_plugin_serves_is_refused(server: SimulatedApiServer, run: Kdp) -> None:
    await made(server, number="8")
    for words in (("advertise", f"{DONGLE}=4"), ("withdraw", DONGLE)):
        said = await run("node", *words, "--yes", code=2)
        assert "node node0 has 8 of it from its kubelet, so a device plugin serves it" in said
    assert await numbers(server) == ("8", "8")


async def test_a_running_plugin_of_this_node_is_found_by_its_socket(
    server: SimulatedApiServer, run: Kdp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(server, number="0")
    (tmp_path / "state").mkdir()
    (tmp_path / "state/widgets.sock").touch()
    status: dict[str, Any] = {"node": None, "pid": 7, "resources": [{"name": DONGLE}]}
    monkeypatch.setattr(asking, "ask", lambda *_: (0, json.dumps(status)))
    monkeypatch.setenv("KDP_NODE_NAME", "node0")
    said = await run("node", "withdraw", DONGLE, "--yes", code=2)
    assert "the plugin of process 7 (widgets.sock) serves it on this node" in said
    status["node"] = "another"
    assert "no longer has" in await run("node", "withdraw", DONGLE, "--yes")


async def test_a_stale_zero_is_cleared_after_a_question(server: SimulatedApiServer, run: Kdp) -> None:
    await made(server, number="0")
    said = await run("node", "withdraw", DONGLE, code=2)
    assert "from a device plugin that has vanished, or that has no devices now" in said
    assert said.endswith("Give --yes to agree\n")
    assert await numbers(server) == ("0", "0")
    assert "it would be asked" in await run("node", "withdraw", DONGLE, "--dry-run")
    await run("node", "withdraw", DONGLE, "--yes")
    assert await numbers(server) == (None, None)


async def test_a_node_that_changes_meanwhile_is_looked_at_again(
    server: SimulatedApiServer, run: Kdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(server, number="4", writer="kdp-node")
    api = server.api
    answer, patches = api.answer, 0

    def changing(request: Any) -> Any:
        nonlocal patches
        if request.method == "PATCH":
            patches += 1
            if patches == 1:
                kind = next(kind for kind in api._kinds.values() if kind.plural == "nodes")
                node = api.store.get(kind, "", "node0")
                node["status"]["capacity"][DONGLE] = "3"
                api.store.replace(kind, "", "node0", node)
        return answer(request)

    monkeypatch.setattr(api, "answer", changing)
    said = await run("node", "withdraw", DONGLE)
    assert "of which it had 3" in said
    assert (patches, await numbers(server)) == (2, (None, None))


async def test_a_refusal_of_the_server_is_a_sentence(server: SimulatedApiServer, run: Kdp) -> None:
    await made(server)
    said = await run("node", "advertise", "dongle=4", code=2)
    assert "resource name 'dongle': must be a domain, one slash and a name" in said
    server.faults.is_away = True
    said = await run("node", "advertise", f"{DONGLE}=4", "--node", "node0", code=1)
    assert "was not reached" in said
