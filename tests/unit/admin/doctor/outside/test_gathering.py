"""What `gather` asks of an API server, and that nothing of what it answers costs more than its own questions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cluster.http_server import Answer, Asked, HttpServer, served

from kdp.admin.doctor.node import Once
from kdp.admin.doctor.outside import gathering
from kdp.admin.doctor.outside.catalogue import QUESTIONS
from kdp.admin.doctor.outside.facts import NodeFacts
from kdp.admin.doctor.outside.gathering import gather
from kdp.cluster.client import KubeApi
from kdp_testkit.dra.server import write_kubeconfig

from ..samples import told
from .samples import NODE, RESOURCE, daemonset, lease, node, plugin

ENDED = {"reason": "Error", "exitCode": 78, "finishedAt": "2026-01-01T00:00:00Z"}
POD = plugin(
    container={"ports": [{"name": "probes", "containerPort": 8080}], "readinessProbe": {"httpGet": {"port": "probes"}}},
    state={"restartCount": 1, "lastState": {"terminated": ENDED}},
)
PROXY = "/api/v1/namespaces/kube-system/pods/p-1:8080/proxy/readyz"
LOG = "/api/v1/namespaces/kube-system/pods/p-1/log"


def reply(asked: Asked) -> Answer:
    if asked.path == PROXY:
        return Answer(status=503, body=b"not ready\n")
    if asked.path == LOG:
        return Answer(body=b"the last line\n")
    if asked.path == f"/api/v1/nodes/{NODE}":
        return Answer(body={"kind": "Node", **node()})
    foreign = {"metadata": {"name": "x"}, "spec": {"template": {"spec": {"containers": []}}}}
    objects: dict[str, list[Any]] = {
        "pods": [POD],
        "leases": [lease(5)],
        "nodes": [node()],
        "daemonsets": [daemonset(), foreign],
    }
    waits = asked.query.get("fieldSelector", "").startswith("spec.nodeName=,")
    items = [] if waits else objects.get(asked.path.rpartition("/")[2], [])
    return Answer(body={"metadata": {"resourceVersion": "1"}, "items": items})


async def gathered(server: HttpServer, folder: Path) -> NodeFacts:
    return await gather(KubeApi(write_kubeconfig(folder, server.url)), NODE)


async def test_all_that_is_asked_is_reading_and_is_about_the_node(tmp_path: Path) -> None:
    async with served() as server:
        server.reply = reply
        found = await gathered(server, tmp_path)
    assert {each.method for each in server.asked} == {"GET"}
    asked = {each.path.removeprefix("/api/v1/"): each.query for each in server.asked}
    about = {each.query["fieldSelector"] for each in server.asked if each.path == "/api/v1/events"}
    assert about == {
        f"involvedObject.kind=Node,involvedObject.name={NODE}",
        "involvedObject.kind=DaemonSet,reason=FailedCreate",
    }
    assert [each["metadata"]["name"] for each in found.daemonsets.items] == ["p"]
    assert found.offered.items == [{"metadata": {"name": NODE}, "status": {"capacity": {RESOURCE: "2"}}}]
    assert asked[LOG.removeprefix("/api/v1/")] == {
        "tailLines": "1",
        "limitBytes": "4096",
        "previous": "true",
        "container": "main",
    }
    assert found.logs["kube-system/p-1"].text == "the last line"
    assert (found.answers["kube-system/p-1"].status, found.answers["kube-system/p-1"].text) == (503, "not ready")
    assert [each.pod for each, _ in found.plugins()] == ["p-1"]
    assert found.siblings["kube-system"].items
    assert not [each for each in (found.node, found.pods, found.waiting, found.claims) if each.problem]


async def test_a_refusal_names_the_missing_right_and_spares_the_others(tmp_path: Path) -> None:
    def refusing(asked: Asked) -> Answer:
        if asked.path in (PROXY, "/api/v1/events"):
            body = {"kind": "Status", "message": "User u cannot get resource", "reason": "Forbidden", "code": 403}
            return Answer(status=403, body=body)
        return reply(asked)

    async with served() as server:
        server.reply = refusing
        found = await gathered(server, tmp_path)
    assert "a role must grant the verb 'list' on 'events'" in found.events.problem
    assert "a role must grant the verb 'get' on 'pods/proxy'" in found.answers["kube-system/p-1"].problem
    assert found.pods.items
    [rights] = [each for each in QUESTIONS if each.id == "outside-permissions"]
    verdict, text = told(rights.ask(Once(lambda: found)))
    assert verdict == "not known"
    assert "it lacks 'list' on 'events', 'get' on 'pods/proxy'" in text


async def test_a_pod_that_cannot_be_reached_through_the_server_is_not_known(tmp_path: Path) -> None:
    def unreachable(asked: Asked) -> Answer:
        status = {
            "kind": "Status",
            "status": "Failure",
            "code": 503,
            "message": "error trying to reach service: refused",
        }
        return Answer(status=503, body=status) if asked.path == PROXY else reply(asked)

    async with served() as server:
        server.reply = unreachable
        found = await gathered(server, tmp_path)
    assert "error trying to reach service" in found.answers["kube-system/p-1"].problem


async def test_a_server_that_says_nothing_is_left_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "FIRST", 0.2)
    monkeypatch.setattr(gathering, "ALL", 0.4)
    async with served() as server:
        server.reply = lambda _: None
        async with asyncio.timeout(20):
            found = await gathered(server, tmp_path)
    assert found.node.problem == "get nodes: the API server did not answer in time"
    assert found.claims.problem == "list resourceclaims: the API server did not answer in time"
