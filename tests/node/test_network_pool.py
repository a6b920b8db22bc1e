"""Devices that belong to no node, in a real cluster: the controller's manifest, a driver, a pod, and the uninstall."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from .conftest import Namespace
from .nodekit.cluster import NODE
from .nodekit.machine import IMAGE as BUSYBOX
from .test_dra_manifests import CLUSTERS_OWN, DRIVER, SLICES
from .test_manifests import deployed, rendered, required

POOL = "fabric"
CLAIMS = "resource.k8s.io/v1/resourceclaims"
DEPLOYMENTS = "apps/v1/deployments"
Object = dict[str, Any]


@pytest.fixture
async def written(namespace: Namespace) -> AsyncIterator[list[Object]]:
    """The controller's manifest; what it makes outside of the namespace is gone at the end."""
    required("/dev/fuse")
    cluster = namespace.cluster
    options = (
        "--set=count=3",
        "--mode=dra-controller",
        f"--pool={POOL}",
        f"--pool-nodes=kubernetes.io/hostname={NODE}",
    )
    documents = rendered(namespace, "minimal", *options)
    try:
        yield documents
    finally:
        await cluster.clear_pods(namespace.name, selector="!app.kubernetes.io/name")
        await cluster.kill("fabric-driver")
        await cluster.api("DELETE", f"/apis/apps/v1/namespaces/{namespace.name}/deployments")
        await cluster.clear_pods(namespace.name)
        for document in documents:
            resource = CLUSTERS_OWN.get(document["kind"], "")
            if resource and await cluster.get(resource, document["metadata"]["name"]):
                await cluster.delete(resource, document["metadata"]["name"])
        await cluster.clear_published()


def user() -> list[Object]:
    """Return a class, a claim and a pod that opens its device."""
    expression = f'device.driver == "{DRIVER}"'
    main = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", ": <> /dev/fuse && echo opened"],
        "resources": {"claims": [{"name": "c"}]},
    }
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "resourceClaims": [{"name": "c", "resourceClaimName": "of-the-fabric"}],
        "containers": [main],
    }
    request = {"name": "c", "exactly": {"deviceClassName": "fabric"}}
    api = "resource.k8s.io/v1"
    return [
        {
            "apiVersion": api,
            "kind": "DeviceClass",
            "metadata": {"name": "fabric"},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        },
        {
            "apiVersion": api,
            "kind": "ResourceClaim",
            "metadata": {"name": "of-the-fabric"},
            "spec": {"devices": {"requests": [request]}},
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "uses-fabric"}, "spec": spec},
    ]


async def test_published_used_and_removed(namespace: Namespace, generic_image: Path, written: list[Object]) -> None:
    cluster = namespace.cluster

    async def published() -> list[Object]:
        return [each for each in await cluster.list(SLICES) if each["spec"]["driver"] == DRIVER]

    async with deployed(namespace, generic_image, written) as controller:

        async def is_ready() -> bool:
            found = await cluster.get(DEPLOYMENTS, controller.name, namespace=namespace.name)
            return found is not None and found["status"].get("readyReplicas") == 1

        await cluster.until(is_ready, "the controller is ready")
        [item] = await published()
        assert item["spec"]["pool"]["name"] == POOL
        assert len(item["spec"]["devices"]) == 3
        assert "nodeName" not in item["spec"]
        assert "ownerReferences" not in item["metadata"]
        status = await controller.exec("cat", "/proc/1/status")
        assert "Uid:\t65532\t65532\t65532\t65532" in status

        # What its account may write: this pool's slices, and no node's.
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}  # which a list leaves out
        spec: Object = {name: value for name, value in item["spec"].items() if name != "nodeSelector"}
        account = f"--as=system:serviceaccount:{namespace.name}:{controller.name}"
        changes: tuple[tuple[Object, str], ...] = (
            ({"nodeName": NODE}, f"the controller of a pool may not write a slice of node {NODE}"),
            (
                {"allNodes": True, "pool": {**item["spec"]["pool"], "name": "other"}},
                "may not write a slice of pool other",
            ),
            (
                {"allNodes": True, "driver": "other.example.com"},
                "may not write a slice of the driver other.example.com",
            ),
        )
        for change, sentence in changes:
            body = json.dumps({**kind, "metadata": {"name": "stolen"}, "spec": {**spec, **change}})
            with pytest.raises(RuntimeError, match=sentence):
                await cluster.kubectl("create", account, "--filename=-", stdin=body)

        # The node's driver prepares its claims and publishes nothing.
        arguments = [
            "minimal",
            "--mode=dra",
            f"--node-name={NODE}",
            f"--pool={POOL}",
            "--set=count=3",
            "--device-status=on",
        ]
        config = f"--kubeconfig={cluster.work}/admin.kubeconfig"
        await cluster.spawn("fabric-driver", sys.executable, "-m", "kdp", "run", *arguments, config)
        # Slices say nothing of drivers: a pod that comes to the node before its driver is not tried again for a minute.
        await cluster.until(lambda: "registered with the kubelet" in cluster.log("fabric-driver"), "it is registered")
        await cluster.apply(*user(), namespace=namespace.name)
        await cluster.until_said("uses-fabric", "opened", namespace=namespace.name)
        await cluster.until_pod("uses-fabric", "Succeeded", namespace=namespace.name)
        assert [each["metadata"]["name"] for each in await published()] == [item["metadata"]["name"]]

        # A kubelet's restart wipes the slices of its node, and no others.
        await cluster.restart()
        assert [each["metadata"]["uid"] for each in await published()] == [item["metadata"]["uid"]]

        await cluster.delete(DEPLOYMENTS, controller.name, namespace=namespace.name)
        await cluster.clear_pods(namespace.name, selector=f"app.kubernetes.io/name={controller.name}")
        assert len(await published()) == 1, "the slices outlive their controller"
        command = [sys.executable, "-m", "kdp", "unpublish", DRIVER, f"--pool={POOL}", config]
        inside = ["nsenter", f"--net=/proc/{cluster.first_process}/ns/net", *command]
        done = await anyio.to_thread.run_sync(
            lambda: subprocess.run(inside, capture_output=True, text=True, check=False, env={**os.environ})
        )
        assert done.stdout == f"1 slices of pool {POOL} of {DRIVER} are deleted\n", done.stderr
        assert await published() == []
