"""`kdp doctor --node-name` in a real cluster: what an administrator's laptop learns from the API server alone."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from .backend import RESOURCE, Figure, Widgets, running
from .conftest import MakeCluster, Namespace
from .nodekit import Cluster
from .nodekit.cluster import NODE
from .test_cluster import deployed
from .test_manifests import deployed as as_written
from .test_manifests import rendered
from .test_nodes import pod, until_refused

FORBIDDEN: Final = "scheduler"
"""A user of the cluster who may not list Events and leases."""


async def answers(cluster: Cluster, user: str = "admin", node: str = NODE) -> dict[str, dict[str, Any]]:
    """Return what the doctor answers from outside; a bad answer is no error of the command."""
    file = cluster.work / f"{user}.kubeconfig"
    words = f"{sys.executable} -m kdp doctor --node-name {node} --kubeconfig {file} --format json; test $? -ne 2"
    found = json.loads(await cluster.run("sh", "-c", words))
    return {each["id"].removeprefix("outside-"): each for each in found["questions"]}


async def until_answered(cluster: Cluster, question: str, answer: str, words: str) -> dict[str, Any]:
    """Wait until the doctor gives this answer with these words, and return it."""
    last: dict[str, Any] = {}

    async def is_so() -> bool:
        nonlocal last
        last = (await answers(cluster))[question]
        return bool(last["answer"] == answer and words in last["seen"])

    await cluster.until(is_so, f"{question} is answered {answer}", every=0.5, seconds=120.0)
    return last


async def test_a_plugin_in_order_then_a_pod_that_finds_no_device(
    namespace: Namespace, generic_image: Path, figure: Figure
) -> None:
    cluster = namespace.cluster
    async with deployed(cluster, namespace.name, generic_image) as plugin:
        began = time.monotonic()
        found = await answers(cluster)
        figure("kdp doctor from outside", time.monotonic() - began, "s")
        for question in ("api-server", "permissions", "node-ready", "plugin-pod", "plugin-pod-ready"):
            assert found[question]["answer"] == "ok", found[question]
        offered = found["allocatable"]
        assert offered["answer"] == "ok" or RESOURCE not in offered["seen"], offered  # zeros that another test has left
        assert f"{namespace.name}/" in found["plugin-pod"]["seen"]
        await plugin.start("holds", 2)
        await cluster.apply(pod("late", {RESOURCE: "1"}), namespace=namespace.name)
        await until_refused(cluster, "late", RESOURCE, namespace.name)
        waits = (await answers(cluster))["pods-waiting"]
        assert waits["answer"] == "warning"
        assert f"1 pod: {namespace.name}/late: " in waits["seen"]
        assert f"Insufficient {RESOURCE}" in waits["seen"]
        for name in "w0", "w1":
            plugin.nodes.unplug(name)
        over = await until_answered(cluster, "requested", "warning", f"{RESOURCE}: 2 requested, 0 allocatable")
        assert over["remedy"].endswith("kdp status"), over
        assert (await answers(cluster))["allocatable"]["answer"] == "failed"


async def test_a_plugin_that_is_not_ready_says_so_through_the_api_server(
    namespace: Namespace, generic_image: Path
) -> None:
    documents = rendered(namespace, "minimal", "--set=count=2")
    [container] = documents[-1]["spec"]["template"]["spec"]["containers"]
    container["args"] = [*container.get("args", []), "--device-plugin-dir=/proc"]  # where no kubelet listens
    async with as_written(namespace, generic_image, documents):
        await until_answered(namespace.cluster, "plugin-pod-ready", "failed", f"{namespace.name}/")
        await until_answered(namespace.cluster, "plugin-answers", "failed", ": not ready")


async def test_a_plugin_that_ends_again_and_again_is_shown_with_its_last_words(
    namespace: Namespace, generic_image: Path
) -> None:
    documents = rendered(namespace, "minimal", "--set=count=2")
    [container] = documents[-1]["spec"]["template"]["spec"]["containers"]
    container["args"] = [*container.get("args", []), "--nosuch"]
    async with as_written(namespace, generic_image, documents):
        found = await until_answered(namespace.cluster, "plugin-restarts", "warning", "--nosuch")
        assert "exit code 2" in found["seen"]
        assert found["remedy"].startswith(f"read why: kubectl -n {namespace.name} logs ")


async def test_a_node_without_a_plugin_and_with_the_zero_that_one_has_left(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster()
    zero = "example.com/zero"
    async with running(cluster.paths, Widgets("z0", resource=zero)):
        await cluster.until_counted(zero, capacity=1, allocatable=1)
    await cluster.restart()
    said = f"the node has 0 of {zero}, and no device plugin's pod is here"
    stale = await until_answered(cluster, "zero", "warning", said)
    assert stale["remedy"] == f"remove what is left: kdp node withdraw {zero} --node {NODE}"
    there = (await answers(cluster))["plugin-pod"]
    assert (there["answer"], "no pod on this node mounts" in there["seen"]) == ("warning", True)
    missing = (await answers(cluster, node="nosuch"))["node-ready"]
    assert (missing["answer"], missing["seen"]) == ("failed", "the cluster has no node nosuch")


async def test_an_account_without_rights_is_told_which_are_missing(namespace: Namespace) -> None:
    found = await answers(namespace.cluster, FORBIDDEN)
    assert found["permissions"]["answer"] == "not known"
    assert "'list' on 'events'" in found["permissions"]["seen"]
    assert found["events"]["answer"] == "not known"
    assert "a role must grant the verb 'list' on 'events'" in found["events"]["seen"]
    assert found["node-ready"]["answer"] == "ok"
