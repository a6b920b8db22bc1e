"""What a device plugin does in a real cluster: Events, evictions, and the start-up taint."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from .backend import Figure
from .conftest import Namespace
from .failing import FOLDER, RESOURCE
from .nodekit import Cluster
from .nodekit.cluster import NODE, ApiError, Object
from .nodekit.image import STAY
from .nodekit.machine import IMAGE as BUSYBOX
from .stolen import MERGE, PLAIN, with_stolen_token
from .test_dra_manifests import CLUSTERS_OWN
from .test_manifests import Plugin, deployed, impatient, rendered

TAINT: Final = "example.com/starting"
KEPT: Final = {"key": "example.com/kept", "effect": "PreferNoSchedule"}
EVENTS: Final = "v1/events"


@pytest.fixture
async def faults(namespace: Namespace) -> AsyncIterator[Path]:
    """Where the names of failed devices are; at the end the node is as before."""
    cluster = namespace.cluster
    folder = cluster.work / FOLDER.removeprefix("/")
    folder.mkdir(exist_ok=True)
    try:
        yield folder
    finally:
        for file in folder.iterdir():
            file.unlink()
        await tainted(cluster, lambda _: [])
        for kind, resource in CLUSTERS_OWN.items():
            for name in await cluster.names(resource):
                if kind != "DeviceClass" and name.startswith("kdp-failing"):
                    await cluster.delete(resource, name)


async def tainted(cluster: Cluster, change: Callable[[list[Object]], list[Object]]) -> None:
    """Change the node's taints."""
    while True:
        node = await cluster.get("v1/nodes", NODE)
        assert node is not None
        node["spec"]["taints"] = change(node["spec"].get("taints", []))
        try:
            await cluster.api("PUT", f"/api/v1/nodes/{NODE}", node)
        except ApiError as error:
            if error.code != 409:
                raise
        else:
            return


def user(name: str, **spec: Any) -> Object:
    """Return a pod that holds one device."""
    main = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", f"env; {STAY}"],
        "resources": {"limits": {RESOURCE: 1}},
    }
    metadata = {"name": name, "labels": {"app": "user"}}
    rest = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**rest, **spec, "containers": [main]}}


async def held_by(plugin: Plugin, name: str) -> str:
    """Have a pod that holds a device, and return which."""
    await plugin.cluster.apply(user(name), namespace=plugin.namespace)
    await plugin.cluster.until_pod(name, "Running", namespace=plugin.namespace)
    said = await plugin.cluster.until_said(name, "FAILING=", namespace=plugin.namespace)
    return next(line.removeprefix("FAILING=") for line in said.splitlines() if line.startswith("FAILING="))


async def until_event(cluster: Cluster, namespace: str, reason: str, about: str, text: str) -> Object:
    """Wait for an Event of kdp, and return it."""
    found: list[Object] = []

    async def is_there() -> bool:
        found[:] = [
            each
            for each in await cluster.list(EVENTS, namespace=namespace)
            if (each["reason"], each["involvedObject"]["name"], each["reportingComponent"]) == (reason, about, "kdp")
            and text in each["message"]
        ]
        return bool(found)

    await cluster.until(is_there, f"there is an Event {reason} of {about} with {text!r}", every=0.05)
    return found[0]


def written(namespace: Namespace, *arguments: str) -> list[Object]:
    return impatient(rendered(namespace, "failing:Failing", *arguments))


async def test_events_on_the_node_and_on_the_pod_that_holds_a_failed_device(
    namespace: Namespace, generic_image: Path, faults: Path, figure: Figure
) -> None:
    cluster = namespace.cluster
    async with deployed(namespace, generic_image, written(namespace, "--events=on")) as plugin:
        await plugin.until_ready()
        device = await held_by(plugin, "user")
        (faults / device).touch()

        of_node = await until_event(
            cluster, "default", "DeviceUnhealthy", NODE, f"device {device} is unhealthy: XID 79"
        )
        of_pod = await until_event(cluster, namespace.name, "DeviceFailed", "user", f"device {device} of {RESOURCE}")
        assert (of_node["type"], of_pod["type"]) == ("Warning", "Warning")
        assert of_pod["message"] == f"device {device} of {RESOURCE}, which container main has, has failed: XID 79"
        described = await cluster.kubectl("describe", "pod", "user", f"--namespace={namespace.name}")
        assert "DeviceFailed" in described, described
        described = await cluster.kubectl("describe", "node", NODE)
        assert "DeviceUnhealthy" in described, described

        (faults / device).unlink()
        await until_event(cluster, "default", "DeviceRecovered", NODE, f"device {device} is healthy again")
        await until_event(cluster, namespace.name, "DeviceRecovered", "user", f"device {device} of {RESOURCE}")
        # The same again is counted in the same Event, for which the plugin has the right as well.
        (faults / device).touch()

        async def is_counted() -> bool:
            event = await cluster.get(EVENTS, of_node["metadata"]["name"], namespace="default")
            return event is not None and event["count"] == 2

        await cluster.until(is_counted, "the Event counts two", every=0.05)
        status = await plugin.exec("cat", "/proc/1/status")
        memory = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        figure("cluster: the plugin's memory with --events on", memory, "MiB (limit 96)")
        log = await plugin.until_said("connected")
        assert "not reported as Events" not in log


async def test_a_pod_that_holds_a_failed_device_is_evicted_unless_a_budget_forbids_it(
    namespace: Namespace, generic_image: Path, faults: Path
) -> None:
    cluster = namespace.cluster
    documents = written(namespace, "--events=on", "--on-unhealthy=evict", "--evict-after=2s")
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "one"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "user"}}},
    }
    async with deployed(namespace, generic_image, documents) as plugin:
        await plugin.until_ready()
        await cluster.apply(budget, namespace=namespace.name)
        device = await held_by(plugin, "user")

        def is_seen(found: Object) -> bool:
            return bool(found.get("status", {}).get("expectedPods") == 1)

        await cluster.until_object("policy/v1/poddisruptionbudgets", "one", is_seen, "counts", namespace=namespace.name)
        (faults / device).touch()
        words = "would violate the pod's disruption budget"
        await until_event(cluster, namespace.name, "EvictionBlocked", "user", words)
        await plugin.until_said(words)
        pod = await cluster.get("v1/pods", "user", namespace=namespace.name)
        assert pod is not None
        assert "deletionTimestamp" not in pod["metadata"]

        await cluster.delete("policy/v1/poddisruptionbudgets", "one", namespace=namespace.name)
        event = await until_event(cluster, namespace.name, "Evicted", "user", f"device {device} of {RESOURCE}")
        assert event["involvedObject"]["uid"] == pod["metadata"]["uid"]
        await plugin.until_said(f"pod {namespace.name}/user: evicted, because device {device} of {RESOURCE} has failed")

        async def is_gone() -> bool:
            return await cluster.get("v1/pods", "user", namespace=namespace.name) is None

        await cluster.until(is_gone, "the pod is gone", every=0.05)


async def test_a_dry_run_ends_no_pod(namespace: Namespace, generic_image: Path, faults: Path) -> None:
    cluster = namespace.cluster
    documents = written(namespace, "--on-unhealthy=evict", "--evict-after=1s", "--evict-dry-run=on")
    async with deployed(namespace, generic_image, documents) as plugin:
        await plugin.until_ready()
        device = await held_by(plugin, "user")
        (faults / device).touch()
        await plugin.until_said(f"pod {namespace.name}/user: would be evicted (dry run), because device {device}")
        pod = await cluster.get("v1/pods", "user", namespace=namespace.name)
        assert pod is not None
        assert "deletionTimestamp" not in pod["metadata"]


async def test_a_pod_waits_for_the_start_up_taint_and_then_runs(
    namespace: Namespace, generic_image: Path, faults: Path
) -> None:
    cluster = namespace.cluster
    await tainted(cluster, lambda _: [{"key": TAINT, "effect": "NoSchedule"}, KEPT])
    await cluster.apply(user("waits"), namespace=namespace.name)

    def is_waiting(pod: Object) -> bool:
        return any("untolerated taint" in each.get("message", "") for each in pod["status"].get("conditions", ()))

    await cluster.until_object("v1/pods", "waits", is_waiting, "waits for the taint", namespace=namespace.name)
    async with deployed(namespace, generic_image, written(namespace, f"--startup-taint={TAINT}")) as plugin:
        await plugin.until_said(f"the taint {TAINT} is removed")
        await cluster.until_pod("waits", "Running", namespace=namespace.name)
        node = await cluster.get("v1/nodes", NODE)
        assert node is not None
        assert node["spec"]["taints"] == [KEPT]


async def test_without_the_right_the_taint_stays_and_the_log_has_the_remedy(
    namespace: Namespace, generic_image: Path, faults: Path
) -> None:
    cluster = namespace.cluster
    await tainted(cluster, lambda _: [{"key": TAINT, "effect": "NoSchedule"}])
    documents = written(namespace, f"--startup-taint={TAINT}")
    for document in documents:
        if document["kind"] == "ClusterRole":
            [rule] = [rule for rule in document["rules"] if "nodes" in rule["resources"]]
            rule["verbs"] = ["get"]
    async with deployed(namespace, generic_image, documents) as plugin:
        said = await plugin.until_said("apply what kdp manifests writes with --startup-taint")
        assert "a role must grant the verb 'patch' on 'nodes'" in said
        await plugin.until_ready()


async def test_the_policies_let_it_write_its_own_only(namespace: Namespace, generic_image: Path, faults: Path) -> None:
    """With the plugin's own token: another node's Events, Events of others, and labels of its node are refused."""
    cluster = namespace.cluster
    await tainted(cluster, lambda _: [{"key": TAINT, "effect": "NoSchedule"}, KEPT])
    documents = written(namespace, "--events=on", f"--startup-taint={TAINT}")
    other: Object = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "theirs", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE},
        "reason": "Theirs",
        "message": "written by somebody else",
        "type": "Normal",
    }
    async with deployed(namespace, generic_image, documents) as plugin:
        await plugin.until_ready()
        await cluster.apply(other)
        merge, patch, plain = MERGE, "application/json-patch+json", PLAIN
        mine = {**other, "metadata": {"name": "x", "namespace": "default"}, "reportingComponent": "kdp"}
        node = f"/api/v1/nodes/{NODE}"
        events = "/api/v1/namespaces/default/events"

        asked = functools.partial(with_stolen_token, plugin)
        said = await asked("PATCH", f"{events}/theirs", merge, {"message": "changed"})
        assert "a device plugin may change its own Events only" in said or "on its own node only" in said, said
        said = await asked("POST", events, plain, {**mine, "reportingInstance": "node1"})
        assert "a device plugin may write Events of kdp on its own node only" in said, said
        said = await asked("POST", events, plain, {**mine, "reportingInstance": NODE, "reportingComponent": "kubelet"})
        assert "a device plugin may write Events of kdp on its own node only" in said, said
        said = await asked("PATCH", "/api/v1/nodes/node1", merge, {"spec": {"taints": []}})
        assert "may not change node node1" in said or said.startswith("404"), said
        said = await asked("POST", events, plain, {**mine, "reportingInstance": NODE, "action": "Told"})
        assert said.startswith("201"), said
        said = await asked("PATCH", node, merge, {"metadata": {"labels": {"a": "b"}}})
        assert "a device plugin may change nothing else of its node" in said, said
        owner = {"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "gone"}
        said = await asked("PATCH", node, merge, {"metadata": {"ownerReferences": [owner]}})
        assert "a device plugin may change nothing else of its node" in said, said
        said = await asked("PATCH", node, merge, {"spec": {"taints": []}})
        assert f"a device plugin may remove the taint {TAINT} only" in said, said
        said = await asked("PATCH", node, merge, {"spec": {"unschedulable": True}})
        assert "may change nothing else of its node" in said, said
        said = await asked("PATCH", node, patch, [{"op": "test", "path": "/spec/taints/0", "value": {"key": "else"}}])
        assert said.startswith("422"), "this is how it says that the taints were changed meanwhile"
        said = await asked("PATCH", node, patch, [{"op": "remove", "path": "/spec/taints"}])
        assert f"a device plugin may remove the taint {TAINT} only" in said, said
