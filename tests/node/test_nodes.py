"""What administrators do to nodes, in a real cluster: labels, resources by hand, and the table of all devices.

A second node has an object and no kubelet: that is all that the scheduler needs to choose it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from .backend import RESOURCE, Widgets, running
from .conftest import MakeCluster, Namespace
from .nodekit import Cluster
from .nodekit.cluster import NODE, Object
from .nodekit.machine import IMAGE as BUSYBOX
from .test_cluster import deployed
from .test_manifests import deployed as as_written
from .test_manifests import rendered

OTHER: Final = "node1"
DONGLE: Final = "example.com/dongle"
COUNT: Final = "example.com/widget.count"
PRODUCT: Final = "example.com/widget.product"

PROGRAM = """
import kdp

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    def __init__(self, count: int, product: str = "") -> None:
        self.count, self.product = count, product

    def discover(self):
        facts = {"product": self.product} if self.product else {}
        return [kdp.Device(id=f"w{i}", attributes=facts) for i in range(self.count)]
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "widgets.py").write_text(PROGRAM)
    return f"{tmp_path / 'widgets.py'}:Widgets"


async def kdp(cluster: Cluster, *words: str) -> str:
    """Run kdp as the cluster's admin; it fails with what was printed."""
    return await cluster.run(sys.executable, "-m", "kdp", *words)


async def labels(cluster: Cluster, node: str) -> dict[str, str]:
    found = await cluster.get("v1/nodes", node)
    assert found is not None
    mine: dict[str, str] = found["metadata"]["labels"]
    return {name: value for name, value in mine.items() if name.startswith("example.com/")}


@asynccontextmanager
async def second_node(cluster: Cluster) -> AsyncIterator[None]:
    """Have a second node: its object, which is ready, and nothing that runs its pods."""
    await cluster.api("POST", "/api/v1/nodes", {"metadata": {"name": OTHER}})
    try:
        node = await cluster.api("GET", f"/api/v1/nodes/{OTHER}")
        del node["metadata"]["resourceVersion"]  # controllers write taints meanwhile
        amounts = {"cpu": "8", "memory": "16Gi", "pods": "110", "ephemeral-storage": "10Gi"}
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "it has no kubelet"}
        node["status"] |= {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        await cluster.api("PUT", f"/api/v1/nodes/{OTHER}/status", node)
        yield
    finally:
        await cluster.api("DELETE", f"/api/v1/nodes/{OTHER}")


def pod(name: str, resources: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a pod that may run on any node, whatever its taints."""
    main = {"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", "exit 0"]}
    container = {**main, "resources": {"limits": resources or {}}}
    common = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    tolerations = [{"operator": "Exists"}]
    metadata = {"name": name}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**common, "tolerations": tolerations, "containers": [container], **spec},
    }


async def placed(cluster: Cluster, manifest: dict[str, Any], namespace: str) -> str:
    """Make a pod and return the node that the scheduler chose; the pod is removed."""
    name = manifest["metadata"]["name"]
    await cluster.apply(manifest, namespace=namespace)

    def is_scheduled(found: Object) -> bool:
        return bool(found["spec"].get("nodeName"))

    try:
        found = await cluster.until_object("v1/pods", name, is_scheduled, "is scheduled", namespace=namespace)
        return str(found["spec"]["nodeName"])
    finally:
        await cluster.api("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")


async def until_refused(cluster: Cluster, name: str, resource: str, namespace: str) -> None:
    def is_refused(found: Object) -> bool:
        [scheduled] = found["status"].get("conditions") or [{}]
        return f"Insufficient {resource}" in scheduled.get("message", "")

    await cluster.until_object("v1/pods", name, is_refused, "does not fit", namespace=namespace)


async def test_pods_land_on_the_node_whose_labels_they_ask_for(namespace: Namespace, target: str) -> None:
    cluster = namespace.cluster
    async with second_node(cluster):
        await kdp(cluster, "node", "label", target, "--node", NODE, "--set=count=4", "--set=product=Widget 3000")
        await kdp(cluster, "node", "label", target, "--node", OTHER, "--set=count=8", "--set=product=Widget 4000")
        assert await labels(cluster, NODE) == {COUNT: "4", PRODUCT: "Widget-3000"}
        for product, node in (("Widget-3000", NODE), ("Widget-4000", OTHER)):
            selected = pod(f"selects-{node}", nodeSelector={PRODUCT: product})
            assert await placed(cluster, selected, namespace.name) == node
        for operator, node in (("Gt", OTHER), ("Lt", NODE)):
            terms = [{"matchExpressions": [{"key": COUNT, "operator": operator, "values": ["6"]}]}]
            required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
            wants = pod(f"wants-{node}", affinity={"nodeAffinity": required})
            assert await placed(cluster, wants, namespace.name) == node
        await kdp(cluster, "node", "label", target, "--node", NODE, "--remove", "--set=count=0")
        assert await labels(cluster, NODE) == {}


async def test_labels_of_others_stay_and_conflicts_name_their_owner(namespace: Namespace, target: str) -> None:
    cluster = namespace.cluster
    await cluster.kubectl("label", "node", NODE, "example.com/rack=7")
    try:
        await kdp(cluster, "node", "label", target, "--node", NODE, "--set=count=4", "--set=product=Widget")
        assert await labels(cluster, NODE) == {"example.com/rack": "7", COUNT: "4", PRODUCT: "Widget"}
        said = await kdp(cluster, "node", "label", target, "--node", NODE, "--set=count=5", "--dry-run")
        assert f"~ {COUNT}=5 (was 4)" in said
        assert f"- {PRODUCT}" in said
        assert await labels(cluster, NODE) == {"example.com/rack": "7", COUNT: "4", PRODUCT: "Widget"}
        await kdp(cluster, "node", "label", target, "--node", NODE, "--set=count=5")
        assert await labels(cluster, NODE) == {"example.com/rack": "7", COUNT: "5"}

        await cluster.kubectl("label", "node", NODE, f"{COUNT}=9", "--overwrite")
        with pytest.raises(RuntimeError, match=f"{COUNT}: node {NODE} has '9', which kubectl-label owns"):
            await kdp(cluster, "node", "label", target, "--node", NODE, "--set=count=5")
        assert (await labels(cluster, NODE))[COUNT] == "9"
        await kdp(cluster, "node", "label", target, "--node", NODE, "--set=count=5", "--force")
        assert (await labels(cluster, NODE))[COUNT] == "5"
        assert "has these labels already" in await kdp(
            cluster, "node", "label", target, "--node", NODE, "--set=count=5"
        )
        with pytest.raises(RuntimeError, match='nodes "absent" not found'):
            await kdp(cluster, "node", "label", target, "--node", "absent", "--set=count=5")
        assert await cluster.get("v1/nodes", "absent") is None
    finally:
        await kdp(cluster, "node", "label", target, "--node", NODE, "--remove", "--set=count=0")
        await cluster.kubectl("label", "node", NODE, "example.com/rack-")
    assert await labels(cluster, NODE) == {}


async def test_the_scheduler_counts_what_was_advertised_by_hand(namespace: Namespace) -> None:
    cluster, name = namespace.cluster, namespace.name
    said = await kdp(cluster, "node", "advertise", f"{DONGLE}=2")
    assert "get no device" in said
    await cluster.apply(pod("has", {DONGLE: "2"}), namespace=name)
    await cluster.until_pod("has", "Succeeded", namespace=name)
    await cluster.apply(pod("many", {DONGLE: "3"}), namespace=name)
    await until_refused(cluster, "many", DONGLE, name)
    # The kubelet keeps what it did not write, also through its restart.
    await cluster.restart()
    await cluster.until_counted(DONGLE, capacity=2, allocatable=2)

    keeps = pod("keeps", {DONGLE: "1"})
    keeps["spec"]["containers"][0]["command"] = ["/bin/sh", "-c", "sleep 3600"]
    await cluster.apply(keeps, namespace=name)
    await cluster.until_pod("keeps", "Running", namespace=name)
    found = json.loads(await kdp(cluster, "nodes", "--format", "json", "--resource", "example.com/*"))
    [row] = [row for row in found["resources"] if row["resource"] == DONGLE]
    assert row == {
        "node": NODE,
        "resource": DONGLE,
        "capacity": 2,
        "allocatable": 2,
        "requested": 1,
        "is_node_ready": True,
        "is_unserved": False,
        "unhealthy": 0,
    }
    assert "no longer has" in await kdp(cluster, "node", "withdraw", DONGLE)
    await cluster.until_counted(DONGLE, capacity=0, allocatable=0)
    node = await cluster.get("v1/nodes", NODE)
    assert node is not None
    assert DONGLE not in {**node["status"]["capacity"], **node["status"]["allocatable"]}
    await cluster.apply(pod("late", {DONGLE: "1"}), namespace=name)
    await until_refused(cluster, "late", DONGLE, name)
    running_on = await cluster.get("v1/pods", "keeps", namespace=name)
    assert running_on is not None
    assert running_on["status"]["phase"] == "Running"


async def test_the_table_shows_the_plugins_pod_with_its_version(namespace: Namespace, generic_image: Path) -> None:
    cluster = namespace.cluster
    async with deployed(cluster, namespace.name, generic_image) as plugin:
        one = await plugin.start("one")
        plugin.nodes.unplug("w0" if "w1" in await cluster.exec("one", "ls", "/dev", namespace=namespace.name) else "w1")
        await cluster.until_counted(RESOURCE, capacity=2, allocatable=1)
        assert one["spec"]["nodeName"] == NODE
        lines = [line.split() for line in (await kdp(cluster, "nodes", "--resource", RESOURCE)).splitlines()]
        assert [NODE, RESOURCE, "2", "1", "1", "1"] in lines
        assert ["plugin", "1", "1", "1"] in lines


async def test_a_name_that_a_plugin_serves_is_refused(namespace: Namespace) -> None:
    cluster = namespace.cluster
    resource = "example.com/served"
    async with running(cluster.paths, Widgets("w0", "w1", resource=resource)):
        await cluster.until_counted(resource, capacity=2, allocatable=2)
        for words in (("advertise", f"{resource}=4"), ("withdraw", resource)):
            with pytest.raises(RuntimeError, match=f"node {NODE} has 2 of it from its kubelet, so a device plugin"):
                await kdp(cluster, "node", *words, "--yes")
        await cluster.until_counted(resource, capacity=2, allocatable=2)


async def test_what_plugins_that_vanished_left_is_cleared(make_cluster: MakeCluster) -> None:
    """A kubelet that has lost its memory neither knows their resources nor removes them from its node's status."""
    cluster = await make_cluster()
    zero, lost = "example.com/zero", "example.com/lost"
    async with running(cluster.paths, Widgets("l0", "l1", resource=lost)):
        async with running(cluster.paths, Widgets("z0", "z1", resource=zero)):
            await cluster.until_counted(zero, capacity=2, allocatable=2)
        await cluster.restart()
        await cluster.until_object("v1/nodes", NODE, lambda node: _number(node, zero) == "0", "shows the zero")
        await cluster.until_counted(lost, capacity=2, allocatable=2)
        await cluster.crash()
    (cluster.paths.device_plugin_dir / "kubelet_internal_checkpoint").unlink()
    await cluster.start()

    with pytest.raises(RuntimeError, match=r"from a device plugin that has vanished.*\n?.*Give --yes to agree"):
        await kdp(cluster, "node", "withdraw", zero)
    said = await kdp(cluster, "node", "withdraw", zero, "--yes")
    assert said == f"node {NODE} no longer has {zero}, of which it had 0\n"
    with pytest.raises(RuntimeError, match=r"has 2 of it from its kubelet.*--force removes a number of no plugin"):
        await kdp(cluster, "node", "withdraw", lost, "--yes")
    await kdp(cluster, "node", "withdraw", lost, "--yes", "--force")
    # The kubelet writes its status once more, and brings neither back.
    async with running(cluster.paths, Widgets("w0")):
        node = await cluster.until_counted(RESOURCE, capacity=1, allocatable=1)
        for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
            assert {name for name in amounts if name.startswith("example.com/")} == {RESOURCE}
        # A number that is right comes back.
        await kdp(cluster, "node", "withdraw", RESOURCE, "--yes", "--force")
        await cluster.until_counted(RESOURCE, capacity=1, allocatable=1)


def _number(node: Object, resource: str) -> str | None:
    found: str | None = node["status"]["capacity"].get(resource)
    return found


async def test_a_deployed_plugin_writes_its_labels_for_nfd_and_takes_them_along(
    namespace: Namespace, generic_image: Path
) -> None:
    directory = "/run/features.d"
    documents = rendered(namespace, "minimal", "--set=count=2", "--labels=nfd", f"--labels-dir={directory}")
    cluster = namespace.cluster
    async with as_written(namespace, generic_image, documents) as plugin:
        await plugin.until_ready()

        async def text() -> str:
            return await cluster.run("sh", "-c", f"cat {directory}/* 2>/dev/null || true")

        async def is_written() -> bool:
            return "example.com/fuse.count=2" in await text()

        await cluster.until(is_written, "the labels are in the node's directory")
        assert "# +expiry-time=" in await text()
        await cluster.delete("apps/v1/daemonsets", plugin.name, namespace=namespace.name)
        await cluster.clear_pods(namespace.name, selector=f"app.kubernetes.io/name={plugin.name}")

        async def is_gone() -> bool:
            return not await text()

        await cluster.until(is_gone, "the plugin took its labels along")
