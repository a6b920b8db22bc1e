"""A release's life in a real cluster, by real Helm; what an uninstall leaves; what the manifests' limits hold."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import yaml

from .backend import Figure
from .conftest import Namespace
from .deploy import IMAGE
from .nodekit import Missing
from .nodekit.tools import tool
from .test_charts import CONFIGS
from .test_manifests import Plugin, deployed, pod_of, render, rendered, required

NAME: Final = "kdp-minimal"
RESOURCE: Final = "example.com/fuse"


@attrs.frozen
class Helm:
    """Helm in a test's namespace.

    Attributes:
        namespace: Where the releases are.
        command: The program.
    """

    namespace: Namespace
    command: Path

    async def __call__(self, *arguments: str | Path) -> str:
        cluster = self.namespace.cluster
        homes = (f"HELM_{name}_HOME={cluster.work}/helm" for name in ("CACHE", "CONFIG", "DATA"))
        where = f"--namespace={self.namespace.name}"
        return await cluster.run("env", *homes, self.command, *arguments, where)

    async def refused(self, *arguments: str | Path) -> str:
        with pytest.raises(RuntimeError) as refusal:
            await self(*arguments)
        return str(refusal.value)


@pytest.fixture
def helm(namespace: Namespace) -> Helm:
    """The command, for this test's namespace."""
    try:
        return Helm(namespace, tool("helm"))
    except Missing as missing:
        pytest.skip(str(missing))


def chart(namespace: Namespace, folder: Path, *arguments: str) -> Path:
    """Write the smallest example's chart."""
    made = folder / NAME
    where = (f"--image={IMAGE}", f"--namespace={namespace.name}", "--format=helm")
    render("minimal", *arguments, *where, "-o", made)
    return made


async def restarts(plugin: Plugin) -> int:
    [status] = (await plugin.pod())["status"]["containerStatuses"]
    count: int = status["restartCount"]
    return count


async def test_a_releases_life(helm: Helm, generic_image: Path, tmp_path: Path, figure: Figure) -> None:
    required("/dev/fuse")
    namespace, cluster = helm.namespace, helm.namespace.cluster
    await cluster.load(generic_image)
    made = chart(namespace, tmp_path)
    plugin = Plugin(cluster, namespace.name, NAME)

    said = await helm("install", NAME, made, "--set=config.set.count=2", "--wait", "--timeout=120s")
    assert "serves the devices of its nodes as a device plugin" in said
    assert "Pod Security level privileged (hostPath volumes)" in said
    await plugin.until_ready()
    await cluster.until_counted(RESOURCE, capacity=2, allocatable=2)

    # Its test is a pod that gets a device.
    assert "Succeeded" in await helm("test", NAME, "--timeout=120s")
    test = await cluster.get("v1/pods", f"{NAME}-test", namespace=namespace.name)
    assert test is not None
    assert test["spec"]["containers"][0]["resources"]["limits"] == {RESOURCE: "1"}

    chosen = "config.set.count=3,dashboard.enabled=true"
    await helm("upgrade", NAME, made, f"--set={chosen}", "--wait", "--timeout=120s")
    await cluster.until_counted(RESOURCE, capacity=3, allocatable=3)
    dashboard = await cluster.get("v1/configmaps", f"{NAME}-dashboard", namespace=namespace.name)
    assert dashboard is not None
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["kdp.json"])["uid"] == "kdp"
    stored = await cluster.get("v1/secrets", f"sh.helm.release.v1.{NAME}.v2", namespace=namespace.name)
    assert stored is not None
    figure("a release with the dashboard, as Helm stores it", len(stored["data"]["release"]) / 1024, "KiB")
    assert len(stored["data"]["release"]) < 200 * 1024  # Kubernetes takes 1 MiB

    # A value that the schema refuses changes nothing.
    refusal = await helm.refused("upgrade", NAME, made, "--set=config.set.count=many")
    assert "/config/set/count" in refusal
    assert "want integer" in refusal
    await cluster.until_counted(RESOURCE, capacity=3, allocatable=3)

    await helm("rollback", NAME, "1", "--wait", "--timeout=120s")
    await cluster.until_counted(RESOURCE, capacity=2, allocatable=2)
    assert await cluster.get("v1/configmaps", f"{NAME}-dashboard", namespace=namespace.name) is None

    await helm("uninstall", NAME, "--wait", "--timeout=120s")
    for resource in ("apps/v1/daemonsets", "networking.k8s.io/v1/networkpolicies"):
        assert await cluster.list(resource, namespace=namespace.name) == []


async def test_a_canary_is_a_second_release_on_other_nodes(helm: Helm, generic_image: Path, tmp_path: Path) -> None:
    """The label moves the node from one release to the other, and the device stays served."""
    required("/dev/fuse")
    namespace, cluster = helm.namespace, helm.namespace.cluster
    await cluster.load(generic_image)
    main = chart(namespace, tmp_path / "main", "--node-selector=!example.com/canary", "--set=count=2")
    canary = chart(namespace, tmp_path / "canary", "--node-selector=example.com/canary", "--set=count=5")
    await helm("install", NAME, main, "--wait", "--timeout=120s")
    await helm("install", "canary", canary, "--timeout=120s")
    await cluster.until_counted(RESOURCE, capacity=2, allocatable=2)
    try:
        await cluster.kubectl("label", "node", "node0", "example.com/canary=")
        await cluster.until_counted(RESOURCE, capacity=5, allocatable=5)
        assert "connected" in await cluster.until_said(f"canary-{NAME}-*", "connected", namespace=namespace.name)
    finally:
        await cluster.kubectl("label", "node", "node0", "example.com/canary-")
    await cluster.until_counted(RESOURCE, capacity=2, allocatable=2)


def files_of(namespace: Namespace) -> set[str]:
    """Return what is in the directories of the node that kdp writes to; the kubelet's own files left out."""
    work = namespace.cluster.work
    roots = [work / "lib/kdp", work / "run/cdi", namespace.cluster.paths.device_plugin_dir]
    roots += [namespace.cluster.paths.plugins_registry_dir, namespace.cluster.paths.plugins_dir]
    found = {str(path) for root in roots for path in root.rglob("*")}
    return {each for each in found if not each.endswith(("kubelet.sock", "kubelet_internal_checkpoint"))}


async def test_an_uninstall_leaves_the_nodes_files_as_they_were(
    helm: Helm, generic_image: Path, tmp_path: Path
) -> None:
    """The plugin is killed, so that it leaves all it can; the chart's clean-up takes that away, and says so."""
    required("/dev/fuse")
    namespace, cluster = helm.namespace, helm.namespace.cluster
    await cluster.load(generic_image)
    # A test before this one may have left what its pods were given; the clean-up would rightly keep that.
    for each in (cluster.work / "lib/kdp").glob("*"):
        each.unlink()
    made = chart(namespace, tmp_path, "--cdi=beside")
    plugin = Plugin(cluster, namespace.name, NAME)
    before = files_of(namespace)

    await helm("install", NAME, made, "--wait", "--timeout=120s")
    await cluster.until_counted(RESOURCE, capacity=10, allocatable=10)
    left = files_of(namespace) - before
    assert any("kdp-example.com_fuse" in each for each in left)
    assert any(each.endswith(".device-plugin.lock") for each in left)
    assert any("/cdi/kdp_" in each for each in left)
    # While it lives, nothing is removed.
    refused = await cluster.kubectl(
        *("exec", f"--namespace={namespace.name}", f"daemonset/{NAME}", "--"),
        *("sh", "-c", "kdp uninstall minimal --cdi=beside 2>&1; kdp uninstall minimal 2>&1; true"),
    )
    assert "a process holds its lock: end the plugin" in refused
    assert "nothing was removed" in refused
    assert left <= files_of(namespace)

    await cluster.kill_container(await plugin.pod())
    await helm("upgrade", NAME, made, "--set=cleanup=true", "--wait", "--timeout=120s")
    await plugin.until_ready()
    assert "(CDI file): removed" in await plugin.until_said("staying until asked to stop")
    await helm("uninstall", NAME, "--wait", "--timeout=120s")

    async def is_gone() -> bool:
        selector = f"app.kubernetes.io/name={NAME}"
        return not await cluster.list("v1/pods", namespace=namespace.name, selector=selector)

    await cluster.until(is_gone, "its pods are gone", every=0.05)
    assert files_of(namespace) <= before, "what another test has left goes as well"


async def test_a_label_of_the_node_names_the_configuration_and_switches_it(
    helm: Helm, generic_image: Path, tmp_path: Path
) -> None:
    """The chart's account may read nodes, and nothing else; the process stays the same."""
    required("/dev/fuse")
    namespace, cluster = helm.namespace, helm.namespace.cluster
    await cluster.load(generic_image)
    key = "example.com/kdp"
    made = chart(namespace, tmp_path, f"--config={CONFIGS}", f"--config-label={key}")
    plugin = Plugin(cluster, namespace.name, NAME)
    await helm("install", NAME, made, "--wait", "--timeout=120s")
    await cluster.until_counted(RESOURCE, capacity=2, allocatable=2)
    account = f"--as=system:serviceaccount:{namespace.name}:{NAME}"
    assert await cluster.kubectl("auth", "can-i", "get", "nodes", account) == "yes\n"
    for verb in ("list", "watch", "patch"):
        said = await cluster.run("sh", "-c", f"{tool('kubectl')} auth can-i {verb} nodes {account} 2>/dev/null || true")
        assert said == "no\n"
    try:
        await cluster.kubectl("label", "node", "node0", f"{key}=many")
        await cluster.until_counted(RESOURCE, capacity=5, allocatable=5, seconds=120)
        await cluster.kubectl("label", "--overwrite", "node", "node0", f"{key}=nosuch")
        said = await plugin.until_said("the previous configuration stays in force")
        assert f"node label {key}=nosuch names no configuration in /etc/kdp" in said
        assert "there are default, many" in said
        await cluster.until_counted(RESOURCE, capacity=5, allocatable=5)
    finally:
        await cluster.kubectl("label", "node", "node0", f"{key}-")
    await cluster.until_counted(RESOURCE, capacity=2, allocatable=2, seconds=120)
    assert await restarts(plugin) == 0


# -- what the manifests give -------------------------------------------------------------------------------------------


async def test_one_device_was_served_in_both_modes_by_classes_without_state(
    namespace: Namespace, generic_image: Path
) -> None:
    """Each container had a state directory of its own, and so a lock of its own."""
    required("/dev/fuse")
    documents = rendered(namespace, "minimal", "--set=count=2")
    async with deployed(namespace, generic_image, documents) as plugin:
        await plugin.until_ready()
        driver = rendered(namespace, "minimal", "--mode=dra", "--name=kdp-minimal-dra")
        await plugin.cluster.apply(*driver, namespace=namespace.name)

        said = await plugin.cluster.until_said(
            "kdp-minimal-dra-*", f"another process serves {RESOURCE} as a device plugin", namespace=namespace.name
        )

        assert "end that process, for example by deleting its DaemonSet" in said
        assert not [each for each in await plugin.cluster.list("resource.k8s.io/v1/resourceslices") if _is_fuse(each)]
    await namespace.cluster.kubectl(
        "delete", "--ignore-not-found", "--wait=true", "--filename=-", stdin=yaml.safe_dump_all(driver)
    )


def _is_fuse(item: dict[str, Any]) -> bool:
    return bool(item["spec"]["driver"] == "fuse.example.com")


async def test_the_limit_of_memory_holds_commands_in_the_container(
    namespace: Namespace, generic_image: Path, figure: Figure
) -> None:
    """`kdp doctor` and two `kdp status` at once, beside the probes of a plugin whose device a pod has."""
    required("/dev/fuse")
    documents = rendered(namespace, "minimal", "--set=count=100")
    async with deployed(namespace, generic_image, documents) as plugin:
        await plugin.until_ready()
        await plugin.cluster.apply(pod_of("minimal"), namespace=namespace.name)
        await plugin.cluster.until_pod("opens-fuse", "Succeeded", namespace=namespace.name)
        name = (await plugin.pod())["metadata"]["name"]

        async def ask(command: str) -> str:
            shell = f"{command} > /dev/null; echo $?"
            return await plugin.cluster.exec(name, "sh", "-c", shell, namespace=namespace.name)

        for _ in range(3):
            codes = await asyncio.gather(ask("kdp doctor"), ask("kdp status"), ask("kdp status --format json"))
            assert "137" not in " ".join(codes), "killed for want of memory"

        files = "/sys/fs/cgroup/memory.peak /sys/fs/cgroup/memory/memory.max_usage_in_bytes"
        said = await plugin.exec("sh", "-c", f"cat {files} 2> /dev/null; true")
        for number in re.findall(r"\d+", said)[:1]:
            peak = int(number) / 2**20
            figure("cluster: peak of a plugin's container, with kdp doctor and two kdp status", peak, "MiB (limit 128)")
        assert await restarts(plugin) == 0
        events = await plugin.cluster.list("v1/events", namespace=namespace.name)
        assert "OOM" not in json.dumps(events)


async def test_a_class_that_asks_for_labels_has_no_pod_on_other_nodes(
    namespace: Namespace, generic_image: Path
) -> None:
    """The reference backends' manifests: pods where one of the labels is, none elsewhere."""
    cluster = namespace.cluster
    await cluster.load(generic_image)
    documents = rendered(namespace, "minimal", "--set=count=2")
    terms = [
        {"matchExpressions": [{"key": f"example.com/{name}", "operator": "In", "values": ["true"]}]}
        for name in ("one", "two")
    ]
    required_terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    documents[-1]["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required_terms}
    await cluster.apply(*documents, namespace=namespace.name)

    async def scheduled() -> int:
        found = await cluster.get("apps/v1/daemonsets", NAME, namespace=namespace.name)
        assert found is not None
        status = found["status"]
        seen = status.get("observedGeneration") == found["metadata"]["generation"]
        return int(status["desiredNumberScheduled"]) if seen else -1

    async def is_none() -> bool:
        return await scheduled() == 0

    async def is_one() -> bool:
        return await scheduled() == 1

    await cluster.until(is_none, "no pod is wanted")
    try:
        await cluster.kubectl("label", "node", "node0", "example.com/two=true")
        await cluster.until(is_one, "one pod is wanted")
    finally:
        await cluster.kubectl("label", "node", "node0", "example.com/two-")
    await cluster.until(is_none, "no pod is wanted again")
