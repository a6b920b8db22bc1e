"""``kdp nodes`` against a simulated API server, small and of the size that it is for."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from kdp_testkit.dra.server import SimulatedApiServer
from kdp_testkit.dra.store import KINDS

from .conftest import Kdp

Figure = Callable[[str, float, str], None]

GPU = "nvidia.com/gpu"
PLUGIN_DIR = "/var/lib/kubelet/device-plugins"

MEMORY = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, used.ru_maxrss, used.ru_utime + used.ru_stime, done.stdout]))
"""


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
    assert lines[0] == ["NODE", "RESOURCE", "CAPACITY", "ALLOCATABLE", "REQUESTED", "UNHEALTHY", "PLUGINS"]
    assert ["gpu-0", GPU, "8", "7", "3", "1", "kdp-nvidia-gpu:1.4"] in lines
    assert ["gpu-1", "(not", "ready)", GPU, "4", "4", "0", "-"] in lines
    assert ["NODE", "DRIVER", "POOL", "SLICES", "DEVICES", "TAINTED"] in lines
    assert ["gpu-1", "gpu.nvidia.com", "gpu-1", "1", "2", "1"] in lines

    found = await as_json("nodes")
    assert (found["nodes"], found["pools_unknown"]) == (3, None)
    assert found["plugins"] == [
        {
            "node": "gpu-0",
            "namespace": "kube-system",
            "pod": "kdp-nvidia-gpu-gpu-0",
            "owner": "kdp-nvidia-gpu",
            "image": "registry.example.com/nvidia-gpu:1.4",
            "version": "1.4",
            "is_ready": True,
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
    assert "DRA pools are not known" in await run("nodes")


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


async def test_odd_answers_end_the_command_with_a_sentence(server: SimulatedApiServer, run: Kdp) -> None:
    make(server, "nodes", "", {"metadata": {"name": "a"}, "status": {"capacity": {GPU: 4}}})
    assert f"status.capacity['{GPU}'] must be text, this is 4" in await run("nodes", code=1)


async def test_500_nodes_with_10_000_pods(server: SimulatedApiServer, run: Kdp, figure: Figure) -> None:
    """The pods are 80 MB as JSON. They come in pages, and of each only its figures are kept."""
    padding = "x" * 7500
    for number in range(500):
        name = f"gpu-{number:03}"
        make_node(server, name, 8, 8 - (number % 100 == 0))
        make_plugin(server, name, "registry.example.com/nvidia-gpu:1.4")
    for number in range(10_000):
        make_pod(server, f"train-{number:05}", f"gpu-{number % 500:03}", number % 2, padding=padding)
    command = [sys.executable, "-c", MEMORY, sys.executable, "-m", "kdp", "nodes", "-o", "json"]
    began = time.monotonic()
    done = await anyio.run_process(command, env=dict(os.environ))
    took = time.monotonic() - began
    code, memory, processor, text = json.loads(done.stdout)
    assert code == 0
    found = json.loads(text)
    assert (found["nodes"], len(found["resources"]), len(found["plugins"])) == (500, 500, 500)
    assert sum(row["requested"] for row in found["resources"]) == 5000
    assert sum(row["unhealthy"] for row in found["resources"]) == 5
    asked = [path for path, _ in server.api.requests]
    assert (asked.count("GET /api/v1/nodes"), asked.count("GET /api/v1/pods")) == (2, 42)
    figure("kdp nodes: 500 nodes, 10,500 pods: time, most of it the simulated server's", took, "s")
    figure("kdp nodes: 500 nodes, 10,500 pods: the command's processor time", processor, "s")
    figure("kdp nodes: 500 nodes, 10,500 pods: memory", memory / 1024, "MiB")
    assert memory / 1024 < 200
    began = time.monotonic()
    lines = (await run("nodes")).splitlines()
    figure("kdp nodes: 500 nodes, 10,500 pods: table, in a running process", time.monotonic() - began, "s")
    assert len(lines) == 501


def test_no_grpc_is_loaded(tmp_path: Path) -> None:
    """The command is for an administrator's machine and for small containers."""
    import subprocess

    code = (
        "import sys, kdp.cli.nodes, kdp.cli.node, kdp.cluster.client, kdp.operations.cluster_view; "
        "print(*[m for m in sys.modules if m.startswith(('grpc', 'google.protobuf'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == ""
