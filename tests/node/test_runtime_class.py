"""The strategies that need NVIDIA's container runtime, with a runtime that behaves like it behind a RuntimeClass."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kdp_nvidia_gpu.fake import FakeNode, GpuState, NvmlState, compile_library
from kdp_testkit.patience import PATIENCE

from .commands import kdp_command
from .conftest import MakeCluster, Namespace
from .nodekit import Cluster
from .nodekit.image import STAY
from .nodekit.machine import HANDLER, IMAGE, Machine
from .wrapper import SHARED

RESOURCE = "nvidia.com/gpu"
STATE = NvmlState(gpus=(GpuState(), GpuState(minor=7)))
CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": HANDLER}
OPENS = f"for d in /dev/nvidia*; do [ -e $d ] && : <> $d && echo opened $d; done; env; echo done; {STAY}"


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """A node with a driver and two GPUs, and without NVIDIA's container toolkit."""
    try:
        return FakeNode(tmp_path / "node", library=compile_library(tmp_path), state=STATE)
    except FileNotFoundError as error:
        pytest.skip(str(error))


def install_toolkit(machine: Machine, node: FakeNode) -> None:
    """Install the runtime behind the RuntimeClass, and what tells a plugin that it is there."""
    program = machine.wrapper.with_name("wrapper.py")
    shutil.copy(Path(__file__).with_name("wrapper.py"), program)
    nodes = {STATE.uuid(index): f"/dev/nvidia{gpu.minor or index}" for index, gpu in enumerate(STATE.gpus)}
    program.with_name("gpus.json").write_text(json.dumps(nodes))
    machine.wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -I {program} "$@"\n')
    machine.wrapper.chmod(0o755)
    node.tree.write("/etc/nvidia-container-runtime/config.toml", "")


@asynccontextmanager
async def running(machine: Machine, node: FakeNode, strategy: str) -> AsyncIterator[str]:
    """Run the plugin beside the cluster; where its readiness can be read."""
    log = machine.work / "plugin.log"
    arguments = (
        *("run", "nvidia-gpu", f"--set=strategies={strategy}", f"--host-root={node.root}", *machine.options),
        *("--http=127.0.0.1:0", "--state-dir=none"),
    )
    env = {name: text for name, text in os.environ.items() if not name.startswith("NVIDIA_")}
    async with kdp_command(log, *arguments, env=env):
        address = re.compile(r"(http://127\.0\.0\.1:\d+)/readyz")
        await machine.until(lambda: address.search(log.read_text()), "the plugin says where its readiness is")
        [found] = address.findall(log.read_text())[:1]
        yield f"{found}/readyz"


def readiness(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310
            return json.load(answer)  # type: ignore[no-any-return]
    except urllib.error.HTTPError as error:
        return json.load(error)  # type: ignore[no-any-return]


def pod(name: str, *, runtime_class: str | None) -> dict[str, Any]:
    limits = {RESOURCE: "1", "cpu": "100m", "memory": "64Mi"}
    main = {"name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", OPENS], "resources": {"limits": limits}}
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "containers": [main]}
    if runtime_class is not None:
        spec["runtimeClassName"] = runtime_class
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "user"}}, "spec": spec}


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts"])
async def test_a_pod_sees_its_gpu_by_the_runtime_class_and_none_without(
    namespace: Namespace, node: FakeNode, strategy: str
) -> None:
    await _try(namespace.cluster, namespace.name, node, strategy)


async def test_the_same_with_the_older_containerd(make_cluster: MakeCluster, node: FakeNode) -> None:
    cluster = await make_cluster(containerd="containerd-1")
    async with cluster.namespace() as place:
        await _try(cluster, place, node, "envvar")


async def _try(cluster: Cluster, place: str, node: FakeNode, strategy: str) -> None:
    async with running(cluster, node, strategy) as url:
        reason = f"strategies={strategy} needs NVIDIA's container runtime, and without it containers start with no GPU"
        await cluster.until(lambda: reason in json.dumps(readiness(url)), "the readiness says what is missing")
        assert readiness(url)["ready"] is False

        install_toolkit(cluster, node)
        await cluster.until_counted(RESOURCE, capacity=2, allocatable=2)
        assert readiness(url)["ready"] is True
        assert "pods may have to say runtimeClassName: nvidia" in (cluster.work / "plugin.log").read_text()

        await cluster.apply(CLASS)
        await cluster.apply(pod("with", runtime_class="nvidia"), pod("without", runtime_class=None), namespace=place)
        said = await cluster.until_said("with", "done", namespace=place)
        opened = {line.removeprefix("opened ") for line in said.splitlines() if line.startswith("opened ")}
        assert opened in ({*SHARED, "/dev/nvidia0"}, {*SHARED, "/dev/nvidia7"})
        if strategy == "envvar":
            index = 0 if "/dev/nvidia0" in opened else 1
            assert f"NVIDIA_VISIBLE_DEVICES={STATE.uuid(index)}\n" in said

        said = await cluster.until_said("without", "done", namespace=place)
        assert "NVIDIA_VISIBLE_DEVICES=" in said
        assert "opened" not in said, (
            "it starts without a GPU and without a word, which is why the plugin asks for the runtime"
        )
    await cluster.until_counted(RESOURCE, capacity=2, allocatable=0)
