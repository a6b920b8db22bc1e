"""A node before a plugin came and after it was uninstalled: its files, its Node object, and its ResourceSlices."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from .conftest import MakeCluster, Namespace
from .nodekit import Cluster, Missing
from .nodekit.cluster import NODE
from .nodekit.tools import tool
from .test_helm import NAME, RESOURCE, Helm, chart, files_of
from .test_manifests import Plugin, required

TAINT: Final = "example.com/starting"
DRIVER: Final = "fuse.example.com"
FEATURES: Final = "/run/features.d"


@attrs.frozen(kw_only=True)
class NodeState:
    """What is compared."""

    files: frozenset[str]
    labels: dict[str, str]
    taints: list[dict[str, Any]]
    capacity: dict[str, str]
    allocatable: dict[str, str]
    slices: frozenset[str]


async def state_of(namespace: Namespace) -> NodeState:
    cluster = namespace.cluster
    node = await cluster.get("v1/nodes", NODE)
    assert node is not None
    features = {str(path) for path in (cluster.work / FEATURES[1:]).rglob("*")}
    return NodeState(
        files=frozenset(files_of(namespace) | features),
        labels=node["metadata"]["labels"],
        taints=node["spec"].get("taints", []),
        capacity=node["status"]["capacity"],
        allocatable=node["status"]["allocatable"],
        slices=frozenset(each["metadata"]["name"] for each in await cluster.list("resource.k8s.io/v1/resourceslices")),
    )


async def kdp(cluster: Cluster, *words: str) -> str:
    """Run kdp as the cluster's administrator, elsewhere than on the node: it has directories of its own."""
    return await cluster.run(sys.executable, "-m", "kdp", *words)


async def leave_a_slice(cluster: Cluster) -> None:
    """Leave what a driver leaves whose end no kubelet has seen."""
    node = await cluster.get("v1/nodes", NODE)
    assert node is not None
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"], "controller": True}
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": [{"name": "fuse-0"}]}
    metadata = {"name": "left-by-fuse", "ownerReferences": [owner]}
    item = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    await cluster.api("POST", "/apis/resource.k8s.io/v1/resourceslices", item)


async def test_after_an_uninstall_the_node_is_as_before(
    make_cluster: MakeCluster, generic_image: Path, tmp_path: Path
) -> None:
    """The plugin is frozen until it is killed, so that it leaves all it can; a restart shows the zero."""
    required("/dev/fuse")
    try:
        command = tool("helm")
    except Missing as missing:
        pytest.skip(str(missing))
    cluster = await make_cluster()
    await cluster.load(generic_image)
    async with cluster.namespace() as name:
        namespace = Namespace(cluster, name)
        helm, plugin = Helm(namespace, command), Plugin(cluster, name, NAME)
        made = chart(namespace, tmp_path, "--cdi=beside", "--labels=nfd", f"--labels-dir={FEATURES}", "--set=count=2")
        (cluster.work / FEATURES[1:]).mkdir()
        (cluster.work / "run/cdi").mkdir(exist_ok=True)
        (cluster.work / "lib/kdp").mkdir(exist_ok=True)
        before = await state_of(namespace)

        await helm("install", NAME, made, "--wait", "--timeout=120s")
        await cluster.until_counted(RESOURCE, capacity=2, allocatable=2)
        await kdp(cluster, "node", "label", "minimal", "--node", NODE, "--set=count=2")
        await cluster.kubectl("taint", "node", NODE, f"{TAINT}=:PreferNoSchedule")

        async def is_labelled() -> bool:
            return any("features.d/kdp-example.com_fuse" in each for each in (await state_of(namespace)).files)

        await cluster.until(is_labelled, "there are labels for NFD")
        uninstall = ("uninstall", "minimal", "--nodes", f"kubernetes.io/hostname={NODE}", "--startup-taint", TAINT)
        with pytest.raises(
            RuntimeError, match=r"the plugin of process \d+ \(plugin.sock\) serves it on this node; end"
        ):
            await kdp(cluster, *uninstall, "--dry-run")

        # One that was killed is there again in a moment, and then stops in good order.
        await cluster.kill_container(await plugin.pod(), signal="SIGSTOP")
        await helm("upgrade", NAME, made, "--set=cleanup=true", "--wait", "--timeout=120s")
        await plugin.until_ready()
        said = await plugin.until_said("staying until asked to stop")
        assert "(labels for Node Feature Discovery): removed" in said
        await helm("uninstall", NAME, "--wait", "--timeout=120s")
        await cluster.clear_pods(name, selector=f"app.kubernetes.io/name={NAME}")
        assert (await state_of(namespace)).files <= before.files

        # A kubelet that starts shows the zero at once, and one that has lost its checkpoint forgets the resource at
        # once; otherwise both take five minutes.
        await cluster.restart()
        await cluster.until_object(
            "v1/nodes", NODE, lambda node: node["status"]["capacity"].get(RESOURCE) == "0", "shows the zero"
        )
        await cluster.crash()
        await leave_a_slice(cluster)
        (cluster.paths.device_plugin_dir / "kubelet_internal_checkpoint").unlink()
        await cluster.start()

        async def is_wiped() -> bool:
            return (await state_of(namespace)).slices == before.slices

        await cluster.until(is_wiped, "a kubelet that starts has deleted the slices of its node")
        await leave_a_slice(cluster)

        with pytest.raises(RuntimeError) as tried:
            await kdp(cluster, *uninstall, "--dry-run")
        lines = [
            f"node/{NODE} example.com/fuse.count (label)",
            f"node/{NODE} {TAINT} (start-up taint)",
            f"node/{NODE} {RESOURCE} (resource, of which it has 0)",
            f"resourceslice/left-by-fuse (slice of the driver {DRIVER} on {NODE})",
        ]
        told = str(tried.value)
        assert [line for line in lines if f"{line}: would be removed" not in told] == [], told
        assert (await state_of(namespace)).slices - before.slices == {"left-by-fuse"}
        # What the chart's notes say, where the class is not installed.
        named = ("--resource", RESOURCE, "--driver-name", DRIVER, "--startup-taint", TAINT)
        said = await kdp(cluster, "uninstall", "--nodes", "all", *named)
        assert said.splitlines() == [f"{line}: removed" for line in lines]
        assert await kdp(cluster, *uninstall) == ""

        # The kubelet writes its whole status when it starts, and brings nothing back.
        await cluster.restart()

        async def is_ready() -> bool:
            return (await state_of(namespace)).taints == before.taints

        await cluster.until(is_ready, "the node is Ready again")
        after = await state_of(namespace)
        assert attrs.asdict(after) == attrs.asdict(before)
