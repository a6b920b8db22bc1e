"""A node of a real cluster that is switched from the device plugin to the driver, as the how-to page says.

A drain leaves the pods of DaemonSets. One of them held a device, and the driver gave the same device to a claim.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .conftest import Namespace
from .nodekit.cluster import Object
from .nodekit.image import STAY
from .nodekit.machine import IMAGE as BUSYBOX
from .test_dra_manifests import CLUSTERS_OWN, DRIVER, SLICES, template, user
from .test_manifests import deployed, rendered, required
from .test_outside_doctor import answers

RESOURCE = "example.com/fuse"


def holder() -> Object:
    """Return a DaemonSet whose pod holds one device of the plugin."""
    container: Object = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", f": <> /dev/fuse && echo opened; {STAY}"],
        "resources": {"limits": {RESOURCE: 1}},
    }
    labels = {"app": "exporter"}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "exporter"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }


@pytest.fixture
async def driver(namespace: Namespace) -> AsyncIterator[list[Object]]:
    """The manifest of the driver; what it makes outside of the namespace is gone at the end."""
    required("/dev/fuse")
    cluster = namespace.cluster
    documents = rendered(namespace, "minimal", "--set=count=3", "--mode=dra")
    try:
        yield documents
    finally:
        await cluster.clear_pods(namespace.name, selector="!app.kubernetes.io/name")
        await cluster.api("DELETE", f"/apis/apps/v1/namespaces/{namespace.name}/daemonsets")
        await cluster.clear_pods(namespace.name)
        for document in documents:
            resource, name = CLUSTERS_OWN.get(document["kind"], ""), document["metadata"]["name"]
            if resource and await cluster.get(resource, name):
                await cluster.delete(resource, name)
        await cluster.api("DELETE", f"/apis/{SLICES}")


async def test_a_claim_got_the_device_of_a_daemon_sets_pod(
    namespace: Namespace, generic_image: Path, driver: list[Object]
) -> None:
    cluster = namespace.cluster
    async with deployed(namespace, generic_image, rendered(namespace, "minimal", "--set=count=3")) as plugin:
        await plugin.until_ready()
        await cluster.until_counted(RESOURCE, capacity=3, allocatable=3)
        await cluster.apply(holder(), namespace=namespace.name)
        await cluster.until_said("exporter-*", "opened", namespace=namespace.name)
        await cluster.delete("apps/v1/daemonsets", plugin.name, namespace=namespace.name)
        await cluster.until_counted(RESOURCE, capacity=3, allocatable=0)

    async def devices() -> list[Object]:
        slices = [each for each in await cluster.list(SLICES) if each["spec"]["driver"] == DRIVER]
        return [device for each in slices for device in each["spec"].get("devices", ())]

    async def is_withheld() -> bool:
        found = await devices()
        return len(found) == 3 and [len(each.get("taints", ())) for each in found].count(1) == 1

    async def is_free() -> bool:
        found = await devices()
        return len(found) == 3 and not any(each.get("taints") for each in found)

    async with deployed(namespace, generic_image, driver) as plugin:
        await plugin.until_ready()
        await cluster.until(is_withheld, "one of three devices is withheld", every=0.05)
        # After a successful switch, the doctor ended with 1: it took the plugin that had left for one that had failed.
        seen = await answers(cluster)
        assert not [each for each in seen.values() if each["answer"] == "failed"], seen
        assert "the devices are those of the DRA driver" in seen["allocatable"]["seen"], seen["allocatable"]
        [exporter] = await cluster.list("v1/pods", namespace=namespace.name, selector="app=exporter")
        await plugin.until_said(f"is held by {namespace.name}/{exporter['metadata']['name']}")
        await cluster.apply(template(), namespace=namespace.name)
        for name in ("one", "two", "three"):
            await cluster.apply(user(name, by_claim=True), namespace=namespace.name)
        phases: dict[str, str] = {}

        async def are_two_running() -> bool:
            for name in ("one", "two", "three"):
                pod = await cluster.get("v1/pods", name, namespace=namespace.name)
                phases[name] = "" if pod is None else pod["status"].get("phase", "")
            return sorted(phases.values()) == ["Pending", "Running", "Running"]

        await cluster.until(are_two_running, "two claims have a device, and the third waits", every=0.1)
        await cluster.delete("apps/v1/daemonsets", "exporter", namespace=namespace.name)
        await cluster.until(is_free, "the device of the pod that has ended is free", every=0.1)
        for name in ("one", "two", "three"):
            await cluster.until_pod(name, "Running", namespace=namespace.name)
