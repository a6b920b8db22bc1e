"""The generic example as a DaemonSet in a real cluster with one node."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import attrs
import pytest
import yaml

from .backend import RESOURCE, Figure
from .conftest import MakeCluster, Namespace
from .deploy import DEVICES, IMAGE, Nodes, daemon_set, pod
from .nodekit import Cluster
from .nodekit.cluster import NODE, Object, is_ready
from .quiet import Quiet

ASKS = """
import json, os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
url = "https://{KUBERNETES_SERVICE_HOST}:{KUBERNETES_SERVICE_PORT}".format_map(os.environ)
url += "/apis/authentication.k8s.io/v1/selfsubjectreviews"
headers = {"Authorization": "Bearer " + open(f"{folder}/token").read(), "Content-Type": "application/json"}
review = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).encode()
context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
answer = urllib.request.urlopen(urllib.request.Request(url, review, headers), context=context)
print(json.load(answer)["status"]["userInfo"]["username"])
"""
"""A program in a pod that asks the API server who it is."""


@attrs.define
class Gap:
    """For how many seconds the node showed no allocatable device, and for how many of them a plugin's pod was ready."""

    empty: float = 0.0
    empty_though_ready: float = 0.0


@attrs.define
class Plugin:
    """The plugin of a test, in its namespace, and the device nodes that it finds."""

    cluster: Cluster
    namespace: str
    nodes: Nodes

    async def start(self, name: str, count: int = 1) -> Object:
        """Make a pod that opens its devices, and wait until it has."""
        await self.cluster.apply(pod(name, count), namespace=self.namespace)
        await self.cluster.until_said(name, "opened", namespace=self.namespace)
        return await self.cluster.until_pod(name, "Running", namespace=self.namespace)

    async def is_as_before(self, before: Object) -> None:
        """Assert that a pod runs on in the same container."""
        now = await self.cluster.until_pod(before["metadata"]["name"], "Running", namespace=self.namespace)
        was, [container] = before["status"]["containerStatuses"][0], now["status"]["containerStatuses"]
        assert container["containerID"] == was["containerID"]
        assert container["restartCount"] == 0

    async def pod(self) -> Object:
        """Return the plugin's own pod."""
        [found] = await self.cluster.list("v1/pods", namespace=self.namespace, selector="app=plugin")
        return found

    @asynccontextmanager
    async def gap(self) -> AsyncIterator[Gap]:
        """Add up the seconds, a look each 20 ms."""
        gap = Gap()

        async def look() -> None:
            last, was_empty, was_ready = time.monotonic(), False, False
            while True:
                node = await self.cluster.get("v1/nodes", NODE)
                pods = await self.cluster.list("v1/pods", namespace=self.namespace, selector="app=plugin")
                assert node is not None
                now = time.monotonic()
                if was_empty:
                    gap.empty += now - last
                    gap.empty_though_ready += now - last if was_ready else 0.0
                last, was_ready = now, any(is_ready(each) for each in pods)
                was_empty = not int(node["status"]["allocatable"].get(RESOURCE, 0))
                await anyio.sleep(0.02)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            yield gap
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def deployed(cluster: Cluster, namespace: str, image: Path, *, max_surge: int = 1) -> AsyncIterator[Plugin]:
    """Deploy the plugin with two devices; at the end the node has none of them."""
    nodes = Nodes(cluster.work / DEVICES.removeprefix("/"))
    for name in ("w0", "w1"):
        nodes.plug(name)
    try:
        await cluster.load(image)
        await cluster.apply(*daemon_set(max_surge=max_surge), namespace=namespace)
        await cluster.until_rolled_out("plugin", namespace=namespace)
        await cluster.until_counted(RESOURCE, capacity=2, allocatable=2)
        yield Plugin(cluster, namespace, nodes)
    finally:
        nodes.clear()


@pytest.fixture
async def undisturbed(quiet: Quiet) -> AsyncIterator[None]:
    """How long a node is without a plugin is how long a processor takes to start one."""
    kept = quiet.kept()
    await anyio.to_thread.run_sync(kept.__enter__)
    try:
        yield
    finally:
        kept.__exit__(None, None, None)


@pytest.fixture
async def plugin(namespace: Namespace, generic_image: Path) -> AsyncIterator[Plugin]:
    async with deployed(namespace.cluster, namespace.name, generic_image) as plugin:
        yield plugin


async def test_scheduled_pods_open_their_devices(plugin: Plugin, figure: Figure) -> None:
    cluster, namespace = plugin.cluster, plugin.namespace
    node = yaml.safe_load(await cluster.kubectl("get", "node", NODE, "--output=yaml"))
    assert (node["status"]["capacity"][RESOURCE], node["status"]["allocatable"][RESOURCE]) == ("2", "2")
    began = time.monotonic()
    one = await plugin.start("one")
    figure("cluster: a pod's manifest to its opened device", time.monotonic() - began, "s")
    assert one["spec"]["nodeName"] == NODE
    said = await cluster.exec("one", "sh", "-c", "ls -l /dev/w*; env", namespace=namespace)
    assert "WIDGETS=w" in said
    await cluster.apply(pod("two", 2), namespace=namespace)

    def is_refused(two: Object) -> bool:
        [scheduled] = two["status"].get("conditions") or [{}]
        return f"Insufficient {RESOURCE}" in scheduled.get("message", "")

    await cluster.until_object("v1/pods", "two", is_refused, "does not fit", namespace=namespace)
    await cluster.delete("v1/pods", "one", namespace=namespace)
    assert {"opened /dev/w0", "opened /dev/w1"} <= set(
        (await cluster.until_said("two", "WIDGETS=w0,w1", namespace=namespace)).splitlines()
    )


async def test_a_pods_status_shows_its_unhealthy_device(plugin: Plugin, figure: Figure) -> None:
    one = await plugin.start("one")
    held = (await plugin.cluster.until_said("one", "WIDGETS=", namespace=plugin.namespace)).split("WIDGETS=")[1][:2]

    async def until_shown(health: str) -> float:
        began = time.monotonic()
        wanted = [{"name": RESOURCE, "resources": [{"resourceID": held, "health": health}]}]

        def is_so(one: Object) -> bool:
            return bool(one["status"]["containerStatuses"][0].get("allocatedResourcesStatus") == wanted)

        await plugin.cluster.until_object("v1/pods", "one", is_so, f"shows {wanted}", namespace=plugin.namespace)
        return time.monotonic() - began

    await until_shown("Healthy")
    plugin.nodes.unplug(held)
    figure("cluster: a device unplugged to Unhealthy in its pod's status", await until_shown("Unhealthy"), "s")
    await plugin.cluster.until_counted(RESOURCE, capacity=2, allocatable=1)
    plugin.nodes.plug(held)
    figure("cluster: a device plugged in to Healthy in its pod's status", await until_shown("Healthy"), "s")
    await plugin.cluster.until_counted(RESOURCE, capacity=2, allocatable=2)
    await plugin.is_as_before(one)


@pytest.mark.parametrize("max_surge", [0, 1])
@pytest.mark.usefixtures("undisturbed")
async def test_a_rolling_update_fails_no_pod(
    namespace: Namespace, generic_image: Path, figure: Figure, max_surge: int
) -> None:
    cluster = namespace.cluster
    async with deployed(cluster, namespace.name, generic_image, max_surge=max_surge) as plugin:
        one = await plugin.start("one")
        old = await plugin.pod()
        async with plugin.gap() as gap:
            began = time.monotonic()
            await cluster.apply(*daemon_set(max_surge=max_surge, release=2), namespace=namespace.name)
            if max_surge == 0:
                # Until the node's status says that there is no device, the scheduler sends pods that the kubelet must
                # refuse; no plugin can help that.
                await cluster.until(partial(_is_noticed, plugin, old), "the node shows no device", every=0.02)
            count = 0
            while True:
                # pods come and go all the while, one after another
                name = f"short-{count}"
                await cluster.apply(pod(name, script="echo opened; env"), namespace=namespace.name)
                await cluster.until_pod(name, "Succeeded", namespace=namespace.name)
                count += 1
                if await _is_updated(plugin, old):
                    break
            took = time.monotonic() - began
            await cluster.until_rolled_out("plugin", namespace=namespace.name)
            await cluster.until_counted(RESOURCE, capacity=2, allocatable=2)
        await plugin.is_as_before(one)
    figure(f"cluster: rolling update, maxSurge {max_surge}, took", took, "s")
    figure(f"cluster: rolling update, maxSurge {max_surge}, pods that came and went", count, "pods")
    figure(f"cluster: rolling update, maxSurge {max_surge}, allocatable 0 for", gap.empty, "s")
    figure(f"cluster: rolling update, maxSurge {max_surge}, though a plugin was ready", gap.empty_though_ready, "s")


async def _is_noticed(plugin: Plugin, old: Object) -> bool:
    node = await plugin.cluster.get("v1/nodes", NODE)
    return (node is not None and node["status"]["allocatable"][RESOURCE] == "0") or await _is_updated(plugin, old)


async def _is_updated(plugin: Plugin, old: Object) -> bool:
    pods = await plugin.cluster.list("v1/pods", namespace=plugin.namespace, selector="app=plugin")
    return [each["metadata"]["uid"] != old["metadata"]["uid"] for each in pods if is_ready(each)] == [True]


async def test_the_plugin_is_killed_and_its_pod_deleted(plugin: Plugin, figure: Figure) -> None:
    cluster, namespace = plugin.cluster, plugin.namespace
    one = await plugin.start("one")
    before = await plugin.pod()

    async def is_back() -> bool:
        pods = await cluster.list("v1/pods", namespace=namespace, selector="app=plugin")
        uids = [each["metadata"]["uid"] for each in pods]
        restarts = [each["status"]["containerStatuses"][0]["restartCount"] for each in pods if len(uids) == 1]
        return uids != [before["metadata"]["uid"]] or restarts == [1]

    async with plugin.gap() as gap:
        await cluster.kill_container(before)
        await cluster.until(is_back, "the plugin's container is started again", every=0.05)
        await cluster.until_rolled_out("plugin", namespace=namespace)
        await cluster.until_counted(RESOURCE, capacity=2, allocatable=2)
    figure("cluster: the plugin killed, allocatable 0 for", gap.empty, "s")
    assert (await plugin.pod())["metadata"]["uid"] == before["metadata"]["uid"]
    async with plugin.gap() as gap:
        await cluster.delete("v1/pods", before["metadata"]["name"], namespace=namespace)
        await cluster.until(is_back, "the DaemonSet has another pod", every=0.05)
        await cluster.until_rolled_out("plugin", namespace=namespace)
        await cluster.until_counted(RESOURCE, capacity=2, allocatable=2)
    figure("cluster: the plugin's pod deleted, allocatable 0 for", gap.empty, "s")
    await plugin.is_as_before(one)
    await plugin.start("two")


async def test_the_kubelet_is_killed_under_the_plugin_and_its_pods(plugin: Plugin, figure: Figure) -> None:
    cluster = plugin.cluster
    one, own = await plugin.start("one"), await plugin.pod()
    took: list[float] = []
    for _ in range(5):
        await cluster.crash()
        connected = cluster.log("kubelet").count("Device plugin connected")
        await cluster.start()
        began = time.monotonic()
        await cluster.until(partial(_is_connected, cluster, connected), "the plugin is registered again")
        took.append(time.monotonic() - began)
        await cluster.until_counted(RESOURCE, capacity=2, allocatable=2)
    figure("cluster: kubelet.sock to the plugin's connection, slowest of 5", 1e3 * max(took), "ms")
    await cluster.until_rolled_out("plugin", namespace=plugin.namespace)
    await plugin.is_as_before(one)
    await plugin.is_as_before(own)
    await plugin.start("two")


def _is_connected(cluster: Cluster, times: int) -> bool:
    return cluster.log("kubelet").count("Device plugin connected") > times


async def test_a_pod_talks_to_the_api_server(namespace: Namespace, generic_image: Path) -> None:
    cluster = namespace.cluster
    await cluster.load(generic_image)
    client = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["python3", "-c", ASKS]}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": {"containers": [client]}}
    await cluster.apply(manifest, namespace=namespace.name)
    await cluster.until_said("client", f"system:serviceaccount:{namespace.name}:default", namespace=namespace.name)


async def test_a_cluster_leaves_nothing_behind(make_cluster: MakeCluster, generic_image: Path) -> None:
    """And it has the older containerd, and settings of its own."""
    gates = ("ResourceHealthStatus", "ResourceHealthStatusMessage")
    cluster = await make_cluster(containerd="containerd-1", feature_gates=dict.fromkeys(gates, False))
    async with cluster.namespace() as namespace, deployed(cluster, namespace, generic_image) as plugin:
        one = await plugin.start("one")
        assert "allocatedResourcesStatus" not in one["status"]["containerStatuses"][0]
        assert _traces(cluster) != []
    await cluster.close()
    assert _traces(cluster) == []


def _traces(cluster: Cluster) -> list[str]:
    """Return what of a cluster is on this machine: processes, mounts, cgroups, interfaces, files."""
    name = cluster.work.name
    processes = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    cgroups = [at for at, folders, _ in os.walk("/sys/fs/cgroup") if name in folders]
    return [
        *(command.decode() for command in processes if name.encode() in command),
        *(mount for mount in mounts if name in mount),
        *cgroups,
        *([str(cluster.work)] if cluster.work.exists() else []),
        *(name for _, name in socket.if_nameindex() if name == "cable"),
    ]
