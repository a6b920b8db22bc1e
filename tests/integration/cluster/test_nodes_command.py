"""``kdp nodes`` against a simulated API server, small and of the size that it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kdp_testkit.dra.server import SimulatedApiServer
from kdp_testkit.dra.store import KINDS

from .conftest import Kdp

GPU = "nvidia.com/gpu"
PLUGIN_DIR = "/var/lib/kubelet/device-plugins"


def make(server: SimulatedApiServer, plural: str, namespace: str, item: dict[str, Any]) -> None:
    kind = next(kind for kind in KINDS if kind.plural == plural)
    server.api.store.create(kind, namespace, item)


def make_node(server: SimulatedApiServer, name: str, capacity: int, allocatable: int, *, is_ready: bool = True) -> None:
    status = {
        "capacity": {GPU: str(capacity), "cpu": "96", "hugepages-2Mi": "0"},
        "allocatable": {GPU: str(allocatable), "cpu": "96", "hugepages-2Mi": "0"},
        "conditions": [{"type": "Ready", "status": "True" if is_ready else "Unknown"}],
    }
    make(server, "nodes", "", {"metadata": {"name": name}, "status": status})


def make_pod(
    server: SimulatedApiServer, name: str, node: str, count: int, *, phase: str = "Running", padding: str = ""
) -> None:
    resources = {"requests": {GPU: str(count)}, "limits": {GPU: str(count)}}
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "train:1", "resources": resources}]}
    metadata = {"name": name, "annotations": {"padding": padding}}
    make(server, "pods", "default", {"metadata": metadata, "spec": spec, "status": {"phase": phase}})


def make_plugin(server: SimulatedApiServer, node: str, image: str) -> None:
    owner = {"kind": "DaemonSet", "name": "kdp-nvidia-gpu", "apiVersion": "apps/v1", "uid": "u"}
    item = {
        "metadata": {"name": f"kdp-nvidia-gpu-{node}", "ownerReferences": [owner]},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "plugin", "image": image}],
            "volumes": [{"name": "device-plugins", "hostPath": {"path": PLUGIN_DIR}}],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    make(server, "pods", "kube-system", item)


async def test_the_table_says_what_there_is_and_what_is_asked_for(
    server: SimulatedApiServer, run: Kdp, as_json: Callable[..., Any]
) -> None:
    assert await run("nodes") == "none of the 0 nodes has such a resource\n"
    make_node(server, "gpu-0", 8, 7)
    make_node(server, "gpu-1", 4, 4, is_ready=False)
    make_node(server, "gpu-2", 2, 0)
    make_node(server, "plain", 0, 0)
    make_plugin(server, "gpu-0", "registry.example.com/nvidia-gpu:1.4")
    make_pod(server, "train", "gpu-0", 3)
    make_pod(server, "done", "gpu-0", 2, phase="Succeeded")
    make_pod(server, "failed", "gpu-0", 2, phase="Failed")
    make_pod(server, "pending", "", 8, phase="Pending")
    devices = [{"name": "g0"}, {"name": "g1", "taints": [{"key": "gpu.example.com/unhealthy", "effect": "NoSchedule"}]}]
    pool = {"name": "gpu-1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "gpu-1", "pool": pool, "devices": devices}
    make(server, "resourceslices", "", {"metadata": {"name": "s0"}, "spec": spec})

    lines = [line.split() for line in (await run("nodes")).splitlines()]
    assert lines[0] == ["NODE", "RESOURCE", "CAPACITY", "ALLOCATABLE", "REQUESTED", "UNHEALTHY"]
    assert ["gpu-0", GPU, "8", "7", "3", "1"] in lines
    assert ["gpu-2", GPU, "2", "0", "0", "no", "plugin"] in lines
    assert ["PLUGIN", "VERSION", "NODES", "READY"] in lines
    assert ["kdp-nvidia-gpu", "1.4", "1", "1"] in lines
    assert ["gpu-1", "(not", "ready)", GPU, "4", "4", "0", "-"] in lines
    assert ["NODE", "DRIVER", "POOL", "SLICES", "DEVICES", "TAINTED"] in lines
    assert ["gpu-1", "gpu.nvidia.com", "gpu-1", "1", "2", "1"] in lines

    found = await as_json("nodes")
    assert (found["nodes"], found["pools_unknown"]) == (4, None)
    assert found["plugins"] == [
        {
            "node": "gpu-0",
            "namespace": "kube-system",
            "pod": "kdp-nvidia-gpu-gpu-0",
            "owner": "kdp-nvidia-gpu",
            "image": "registry.example.com/nvidia-gpu:1.4",
            "version": "1.4",
            "is_ready": True,
            "is_driver": False,
            "is_kdp": False,
        }
    ]
    assert found["resources"][0]["requested"] == 3
    assert (await as_json("nodes", "--resource", "rdma/*"))["resources"] == []
    assert "gpu.nvidia.com" not in await run("nodes", "--resource", "nvidia.com/*")


async def test_a_cluster_without_dra_has_no_pools_and_says_so(
    server: SimulatedApiServer, run: Kdp, as_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_node(server, "gpu-0", 8, 8)
    kinds = server.api._kinds
    monkeypatch.delitem(kinds, ("resource.k8s.io", "resourceslices"))
    found = await as_json("nodes")
    assert len(found["resources"]) == 1
    assert "404" in found["pools_unknown"]
    assert "the pools of DRA drivers are not known" in await run("nodes")


async def test_a_list_whose_version_is_gone_is_begun_anew(
    server: SimulatedApiServer, as_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdp.cluster.client.PAGE", 10)
    for number in range(25):
        make_node(server, f"n{number:02}", 1, 1)
    answer, seen = server.api.answer, list[str]()

    def compacting(request: Any) -> Any:
        if request.query.get("continue"):
            seen.append(request.query["continue"])
            if len(seen) == 2:
                make_pod(server, "other", "n00", 1, phase="Succeeded")
                server.api.store.compact()
        return answer(request)

    monkeypatch.setattr(server.api, "answer", compacting)
    found = await as_json("nodes")
    assert (found["nodes"], len(found["resources"])) == (25, 25)
    assert len(seen) == 4
    assert sum(status == 410 for _, status in server.api.requests) == 1
