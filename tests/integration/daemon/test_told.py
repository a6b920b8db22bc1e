"""A plugin's process and the API server: what it writes there, and how little an API server that misbehaves costs."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from anyio import to_thread
from tests.unit.cluster.http_server import Answer, Asked, HttpServer, served

from kdp.command.asking import ask
from kdp.testing import Pod, SimulatedKubelet
from kdp_testkit.dra.server import write_kubeconfig
from kdp_testkit.patience import PATIENCE

Start = Callable[..., AbstractAsyncContextManager[Any]]
Figure = Callable[[str, float, str], None]
Object = dict[str, Any]

RESOURCE: Final = "example.com/gpu"
TAINT: Final = "example.com/starting"

PROGRAM = """
import pathlib
import kdp

HERE = pathlib.Path(__file__).parent

class Gpus(kdp.DeviceBackend):
    resource = "example.com/gpu"

    def discover(self):
        return [kdp.Device(id=f"gpu-{i}") for i in range(4)]

    def watch(self, report):
        ill = set()
        while not report.stopping.wait(0.01):
            now = {path.name for path in HERE.glob("gpu-*")}
            for name in now - ill:
                report.fault(name, "XID 79", kind="xid")
            for name in ill - now:
                report.clear(name, kind="xid")
            ill = now

if __name__ == "__main__":
    kdp.run(Gpus())
"""


class Cluster:
    """What a small API server stores, and how it answers.

    Attributes:
        node: The Node.
        pods: The pods by path.
        events: The Events by name.
        evicted: Who was evicted, with the UID of the request.
        budget: Whether a PodDisruptionBudget forbids evictions.
        broken: What is answered instead.
        status: The HTTP status of that.
    """

    def __init__(self, server: HttpServer) -> None:
        conditions = [{"type": "Ready", "status": "True"}]
        self.node: Object = {
            "kind": "Node",
            "metadata": {"name": "node0", "uid": "n0"},
            "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
            "status": {"conditions": conditions, "allocatable": {}},
        }
        self.pods: dict[str, Object] = {}
        self.events: dict[str, Object] = {}
        self.evicted: list[tuple[str, str]] = []
        self.budget = False
        self.broken: Any = None
        self.status = 200
        self.server = server
        server.reply = self.answer

    def run(self, name: str) -> None:
        """Have a pod of this name."""
        pod = {"kind": "Pod", "metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {"nodeName": "node0"}}
        self.pods[f"/api/v1/namespaces/default/pods/{name}"] = {**pod, "status": {"phase": "Running"}}

    def answer(self, asked: Asked) -> Answer | None:
        if self.broken is not None:
            return Answer(status=self.status, body=self.broken)
        match asked.method, asked.path.rsplit("/", 1):
            case "GET", ["/api/v1/nodes", _]:
                return Answer(body=self.node)
            case "PATCH", ["/api/v1/nodes", _]:
                self.node["spec"]["taints"] = []
                return Answer(body=self.node)
            case "POST", [path, "events"]:
                name = f"event-{len(self.events)}"
                self.events[name] = {**asked.body, "namespace": path.rsplit("/", 1)[1]}
                return Answer(status=201, body={"kind": "Event", "metadata": {"name": name}})
            case "PATCH", [_, name] if name in self.events:
                self.events[name] |= asked.body
                return Answer(body=self.events[name])
            case "POST", [path, "eviction"] if path in self.pods:
                if self.budget:
                    message = "Cannot evict pod as it would violate the pod's disruption budget."
                    return Answer(status=429, body={"kind": "Status", "message": message, "reason": "TooManyRequests"})
                self.evicted.append((path.rsplit("/", 1)[1], asked.body["deleteOptions"]["preconditions"]["uid"]))
                return Answer(status=201, body={"kind": "Status", "status": "Success"})
            case "GET", _ if asked.path in self.pods:
                return Answer(body=self.pods[asked.path])
            case _:
                return Answer(status=404, body={"kind": "Status", "message": "not found", "reason": "NotFound"})

    def told(self, reason: str) -> list[Object]:
        return [event for event in self.events.values() if event["reason"] == reason]

    async def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{what}; there are {json.dumps(self.events, indent=1)}"
            await asyncio.sleep(0.02)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with served() as server:
        yield Cluster(server)


@pytest.fixture
def environment(cluster: Cluster, tmp_path: Path) -> dict[str, str]:
    """What a plugin is started with that tells the cluster."""
    return {
        "KDP_EVENTS": "on",
        "KDP_NODE_NAME": "node0",
        "KDP_KUBECONFIG": str(write_kubeconfig(tmp_path, cluster.server.url)),
    }


async def holder(kubelet: SimulatedKubelet, cluster: Cluster, name: str) -> str:
    """Have a pod that holds a device, and return which."""
    await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 4})
    admitted = await kubelet.admit(Pod.asking({RESOURCE: 1}, name=name))
    cluster.run(name)
    [device] = admitted.devices(RESOURCE)
    return str(device)


async def scraped(own: Path, *lines: str) -> None:
    """Wait until the plugin's metrics have all these lines."""
    text = ""
    deadline = time.monotonic() + PATIENCE
    while not {*lines} <= {*text.splitlines()}:
        assert time.monotonic() < deadline, f"{lines} are not all in:\n{text}"
        await anyio.sleep(0.05)
        _, text = await to_thread.run_sync(ask, str(own), "/metrics")


async def test_the_node_and_the_holder_are_told(
    start: Start, kubelet: SimulatedKubelet, cluster: Cluster, environment: dict[str, str], tmp_path: Path
) -> None:
    async with start(PROGRAM, **environment) as plugin:
        device = await holder(kubelet, cluster, "train")
        (tmp_path / device).touch()
        await cluster.until(lambda: cluster.told("DeviceUnhealthy"), "the node is told")
        await cluster.until(lambda: cluster.told("DeviceFailed"), "the pod is told")
        [of_node], [of_pod] = cluster.told("DeviceUnhealthy"), cluster.told("DeviceFailed")
        assert (of_node["namespace"], of_node["involvedObject"]["kind"]) == ("default", "Node")
        assert of_node["message"] == f"{RESOURCE}: device {device} is unhealthy: XID 79"
        assert of_pod["involvedObject"] == {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "default",
            "name": "train",
            "uid": "uid-train",
        }
        assert (await plugin.stop())[0] == 0
    assert "Traceback" not in plugin.log


@pytest.mark.slow
async def test_a_budget_is_waited_out_and_then_the_pod_goes(
    start: Start, kubelet: SimulatedKubelet, cluster: Cluster, environment: dict[str, str], tmp_path: Path
) -> None:
    cluster.budget = True
    own = tmp_path / "own.sock"
    more = {"KDP_ON_UNHEALTHY": "evict", "KDP_EVICT_AFTER": "1", "KDP_METRICS": "on", "KDP_SOCKET": str(own)}
    async with start(PROGRAM, **environment, **more) as plugin:
        device = await holder(kubelet, cluster, "train")
        (tmp_path / device).touch()
        await plugin.says("pod default/train: not evicted yet: create pods/eviction default/train")
        await cluster.until(lambda: cluster.told("EvictionBlocked"), "the pod is told")
        assert not cluster.evicted
        cluster.budget = False
        await cluster.until(lambda: cluster.evicted, "the pod is evicted")
        assert cluster.evicted == [("train", "uid-train")]
        await plugin.says(f"pod default/train: evicted, because device {device} of {RESOURCE} has failed for")
        await scraped(own, 'kdp_evictions_total{result="accepted"} 1.0', 'kdp_evictions_total{result="failed"} 0.0')
        _, text = await to_thread.run_sync(ask, str(own), "/metrics")
        assert re.search(r'^kdp_evictions_total{result="blocked"} [1-9]', text, re.MULTILINE)
        assert re.search(r'^kdp_events_total{result="created"} [1-9]', text, re.MULTILINE)
        assert (await plugin.stop())[0] == 0


async def test_the_taint_goes_when_the_node_offers_the_devices(
    start: Start, kubelet: SimulatedKubelet, cluster: Cluster, environment: dict[str, str]
) -> None:
    async with start(PROGRAM, **environment, KDP_STARTUP_TAINT=TAINT) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 4})
        looks = [("GET", "/api/v1/nodes/node0")]
        await cluster.until(
            lambda: [(a.method, a.path) for a in cluster.server.asked].count(looks[0]) >= 2, "it looks at the node"
        )
        assert cluster.node["spec"]["taints"], "the node offers no device yet"
        cluster.node["status"]["allocatable"] = {RESOURCE: "4"}
        await plugin.says(f"the taint {TAINT} is removed")
        [patch] = [asked for asked in cluster.server.asked if asked.method == "PATCH" and "/nodes/" in asked.path]
        assert patch.headers["content-type"] == "application/json-patch+json"
        assert [step["op"] for step in patch.body] == ["test", "remove"]


async def test_an_api_server_that_misbehaves_costs_a_line_and_never_the_plugin(
    start: Start,
    kubelet: SimulatedKubelet,
    cluster: Cluster,
    environment: dict[str, str],
    tmp_path: Path,
    figure: Figure,
) -> None:
    cluster.broken = b"<html>a proxy</html>"
    more = {"KDP_ON_UNHEALTHY": "evict", "KDP_EVICT_AFTER": "1", "KDP_STARTUP_TAINT": TAINT}
    async with start(PROGRAM, **environment, **more) as plugin:
        device = await holder(kubelet, cluster, "train")
        (tmp_path / device).touch()
        await plugin.says("problems are not reported as Events")
        await plugin.says("the taint")
        await plugin.says("pod default/train: not evicted yet")
        await kubelet.until(allocatable={RESOURCE: 3})
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        code, seconds = await plugin.stop()
        assert code == 0
        figure("stop of a plugin whose API server answers rubbish", seconds, "s")
        assert seconds < PATIENCE
    assert "Traceback" not in plugin.log
    assert len([line for line in plugin.lines if re.search("problems are not reported as Events", line)]) == 1
    assert not cluster.evicted


async def test_without_an_account_the_plugin_serves_and_says_so(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    environment = {"KDP_EVENTS": "on", "KDP_NODE_NAME": "node0", "KDP_KUBECONFIG": str(tmp_path / "missing")}
    async with start(PROGRAM, **environment) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 4})
        await plugin.says("nothing is reported to Kubernetes: the API server cannot be used as")
        assert (await plugin.stop())[0] == 0
