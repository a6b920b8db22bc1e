"""What `kdp manifests` writes, applied as it is written to a real cluster; and without one right after the other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import yaml

from .backend import Figure
from .conftest import Namespace
from .deploy import IMAGE
from .nodekit import Cluster
from .nodekit.cluster import Object, is_ready
from .nodekit.machine import IMAGE as BUSYBOX

EXAMPLES: Final = Path(__file__).parents[2] / "examples"

NODES: Final = tuple(Path("/dev") / name for name in ("fuse", "net/tun", "hwrng"))

CONFIG: Final = """
domain: example.com
resources:
  - name: seen
    groups: [{count: 2, paths: [{path: /dev/null}]}]
  - name: known
    groups: [{paths: [{path: /sys/class/mem/null, type: Condition}, {path: /dev/null, limit: 9}], id: known}]
"""
"""One resource needs the node's /dev only, the other one its /sys as well."""


def render(*arguments: str | Path) -> str:
    """Return what the command writes."""
    command = [sys.executable, "-m", "kdp", "manifests", *map(str, arguments)]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(namespace: Namespace, *arguments: str | Path) -> list[Object]:
    """Return the documents that the command writes for this namespace."""
    return list(yaml.safe_load_all(render(*arguments, f"--image={IMAGE}", f"--namespace={namespace.name}")))


def pod_of(example: str) -> Object:
    """Return an example's pod.yaml with an image that the node has; nothing else is changed."""
    pod: Object = yaml.safe_load((EXAMPLES / example / "pod.yaml").read_text())
    for container in pod["spec"]["containers"]:
        container["image"] = BUSYBOX
    return pod


@attrs.define
class Plugin:
    """A deployed plugin.

    Attributes:
        cluster: Where.
        namespace: Where in it.
        name: The DaemonSet's name.
    """

    cluster: Cluster
    namespace: str
    name: str

    async def pod(self) -> Object:
        """Return its newest pod."""
        found = await self.cluster.list(
            "v1/pods", namespace=self.namespace, selector=f"app.kubernetes.io/name={self.name}"
        )
        return max(found, key=lambda pod: pod["metadata"]["creationTimestamp"])

    async def until_ready(self) -> None:
        await self.cluster.until_rolled_out(self.name, namespace=self.namespace)

    async def until_said(self, text: str) -> str:
        """Wait for a text in its log."""
        return await self.cluster.until_said(f"{self.name}-*", text, namespace=self.namespace)

    async def exec(self, *command: str) -> str:
        return await self.cluster.exec((await self.pod())["metadata"]["name"], *command, namespace=self.namespace)


@asynccontextmanager
async def deployed(namespace: Namespace, image: Path, documents: list[Object]) -> AsyncIterator[Plugin]:
    """Apply documents; with the namespace they are gone again."""
    cluster = namespace.cluster
    await cluster.load(image)
    await cluster.apply(*documents, namespace=namespace.name)
    yield Plugin(cluster, namespace.name, documents[-1]["metadata"]["name"])


def required(*nodes: str) -> None:
    for node in nodes:
        if not Path(node).exists():
            pytest.skip(f"this kernel has no {node}")


# -- as written --------------------------------------------------------------------------------------------------------


async def test_the_smallest_example_as_written(namespace: Namespace, generic_image: Path, figure: Figure) -> None:
    """Its class looks into /dev itself, so the node's own is there in its place."""
    required("/dev/fuse")
    async with deployed(namespace, generic_image, rendered(namespace, "minimal", "--set=count=2")) as plugin:
        await plugin.until_ready()
        await plugin.cluster.until_counted("example.com/fuse", capacity=2, allocatable=2)
        await plugin.cluster.apply(pod_of("minimal"), namespace=namespace.name)
        await plugin.cluster.until_said("opens-fuse", "opened", namespace=namespace.name)
        await plugin.cluster.until_pod("opens-fuse", "Succeeded", namespace=namespace.name)

        status = await plugin.exec("cat", "/proc/1/status")
        memory = {
            name: int(kib) / 1024 for name, kib in re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB", status, re.MULTILINE)
        }
        figure("cluster: the plugin's memory as deployed", memory["VmRSS"], "MiB (request 48, limit 128)")
        assert memory["VmHWM"] < 96
        assert re.search(r"^CapEff:\s+0{16}$", status, re.MULTILINE), status
        assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE), status
        assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE), status
        log = await plugin.until_said("connected")
        assert not re.search("WARNING|ERROR|CRITICAL", log), log


async def test_a_kustomize_base_as_written(namespace: Namespace, generic_image: Path, tmp_path: Path) -> None:
    required("/dev/fuse", "/dev/net/tun")
    config = f"--set=config={EXAMPLES}/generic/configs/fuse-tun.yaml"
    placing = (f"--image={IMAGE}", f"--namespace={namespace.name}")
    render("generic", config, *placing, "--format=kustomize", "-o", tmp_path / "base")
    cluster = namespace.cluster
    await cluster.load(generic_image)

    await cluster.kubectl("apply", f"--kustomize={tmp_path}/base")

    await cluster.until_rolled_out("kdp-generic", namespace=namespace.name)
    await cluster.until_counted("example.com/tun", capacity=100, allocatable=100)
    await cluster.apply(pod_of("generic"), namespace=namespace.name)
    await cluster.until_said("opens-fuse-and-tun", "opened", namespace=namespace.name)


async def test_a_command_probes_and_nothing_below_dev_can_be_written(namespace: Namespace, generic_image: Path) -> None:
    """As root without capabilities: what is mounted below the node's /dev was writable, and a memory limit in /sys."""
    required("/dev/fuse")
    documents = rendered(namespace, "minimal", "--set=count=2", "--probes=exec")
    async with deployed(namespace, generic_image, documents) as plugin:
        await plugin.until_ready()
        assert await plugin.exec("kdp", "probe", "live") == "ok\n"
        said = json.loads(await plugin.exec("kdp", "probe", "ready"))
        assert said["resources"]["example.com/fuse"]["state"] == "connected"
        [status] = (await plugin.pod())["status"]["containerStatuses"]
        mounts = {each["mountPath"]: each for each in status["volumeMounts"]}
        assert mounts["/dev"]["recursiveReadOnly"] == "Enabled"
        script = "for each in /dev/shm /dev /sys/fs/cgroup/memory; do (: > $each/kdp-test) 2>&1; done; true"
        told = await plugin.exec("sh", "-c", script)
        assert told.count("Read-only file system") == len(told.splitlines()), told


async def test_the_self_testing_example_as_written(namespace: Namespace, generic_image: Path) -> None:
    required("/dev/hwrng")
    async with deployed(namespace, generic_image, rendered(namespace, "hwrng", "--set=count=2")) as plugin:
        await plugin.until_ready()
        await plugin.cluster.until_counted("example.com/hwrng", capacity=2, allocatable=2)
        await plugin.cluster.apply(pod_of("hwrng"), namespace=namespace.name)
        await plugin.cluster.until_said("reads-hwrng", "read", namespace=namespace.name)


# -- without one thing -------------------------------------------------------------------------------------------------


async def is_registered(plugin: Plugin) -> bool:
    """The kubelet holds a stream of each resource, which is what its readiness says."""
    return is_ready(await plugin.pod())


async def sees_nodes(plugin: Plugin) -> bool:
    """What is in the node's /dev is found."""
    return await _healthy(plugin, "example.com/seen") == 2


async def knows_sysfs(plugin: Plugin) -> bool:
    """What the node's /sys says is found."""
    return await _healthy(plugin, "example.com/known") == 1


async def knows_holders(plugin: Plugin) -> bool:
    """It can ask the kubelet which pod holds which device."""
    said = json.loads(await plugin.exec("kdp", "devices", *(await _arguments(plugin)), "--format=json"))
    return any(device.get("held_by") for device in said["resources"].get("example.com/seen", ()))


async def saves_allocations(plugin: Plugin) -> bool:
    """What pods hold outlives the plugin, on the node."""
    files = (plugin.cluster.work / "lib/kdp").glob("*")
    return any(json.loads(file.read_text() or "{}").get("allocations") for file in files if file.suffix == ".json")


async def describes_devices(plugin: Plugin) -> bool:
    """The runtime finds the CDI names of its devices."""
    files = (plugin.cluster.work / "run/cdi").glob("*.json")
    return "kdp.example.com/seen" in {json.loads(file.read_text())["kind"] for file in files}


async def answers_commands(plugin: Plugin) -> bool:
    """A command of the node can ask the living plugin."""
    try:
        await plugin.exec("kdp", "probe", "ready")
    except RuntimeError:
        return False
    return True


async def _healthy(plugin: Plugin, resource: str) -> int:
    # Not the node's status, which may still be that of another test.
    said = json.loads(await plugin.exec("wget", "-q", "-O", "-", "http://127.0.0.1:8080/readyz"))
    return int(said["resources"].get(resource, {}).get("healthy", 0))


async def _arguments(plugin: Plugin) -> list[str]:
    [container] = (await plugin.pod())["spec"]["containers"]
    return [each for each in container["args"][1:] if not each.startswith(("--http", "--cdi"))]


Check = Callable[[Plugin], Awaitable[bool]]

CHECKS: Final[tuple[Check, ...]] = (
    is_registered,
    sees_nodes,
    knows_sysfs,
    knows_holders,
    saves_allocations,
    describes_devices,
    answers_commands,
)


@attrs.frozen
class Missing:
    """One thing that is taken away.

    Attributes:
        what: A volume's name, the prefix of several (``node-sys``), or a field of the container's security context.
        breaks: The check that fails then.
        says: What the plugin's log says of it; empty: nothing, because nothing fails that it could know of.
    """

    what: str
    breaks: Check
    says: str


MISSING: Final = (
    Missing("device-plugins", is_registered, "the plugin directory does not exist"),
    Missing(
        "runAsUser", is_registered, "this process is user 65534 and the kubelet's directories belong to root: run it as"
    ),
    Missing("node-dev", sees_nodes, ""),
    Missing("node-sys", knows_sysfs, ""),
    Missing("pod-resources", knows_holders, "there is no /var/lib/kubelet/pod-resources/kubelet.sock"),
    Missing("state", saves_allocations, "what is allocated now is not released if this process is killed"),
    Missing("cdi", describes_devices, "mount the node's /var/run/cdi writable"),
    Missing("run", answers_commands, "no command can ask this process yet"),
)


@pytest.fixture
def written(namespace: Namespace, tmp_path: Path) -> list[Object]:
    """A deployment with everything that kdp may need."""
    (tmp_path / "devices.yaml").write_text(CONFIG)
    return rendered(namespace, "keeper:Keeper", f"--set=config={tmp_path}/devices.yaml", "--cdi=beside")


def impatient(documents: list[Object]) -> list[Object]:
    """Return a deployment whose readiness is asked for each second, for tests that are about something else."""
    changed: list[Object] = json.loads(json.dumps(documents))
    [container] = changed[-1]["spec"]["template"]["spec"]["containers"]
    container["readinessProbe"]["periodSeconds"] = 1
    return changed


def without(documents: list[Object], what: str) -> list[Object]:
    """Return an impatient deployment without one mount or right."""
    changed = impatient(documents)
    spec = changed[-1]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    if what in container["securityContext"]:
        container["securityContext"][what] = 65534 if what == "runAsUser" else None
        return changed
    for place in (spec["volumes"], container["volumeMounts"]):
        before = len(place)
        place[:] = [each for each in place if _kind_of(each["name"]) != what]
        assert len(place) < before, f"there is no {what}"
    return changed


def _kind_of(volume: str) -> str:
    """Return what a volume is for: those of /sys are the directories of it that are read."""
    return "node-sys" if volume.startswith("node-sys-") else volume


async def use_a_device(plugin: Plugin) -> None:
    """Have a pod that holds one."""
    limits = {"example.com/seen": 1}
    main = {"name": "main", "image": BUSYBOX, "command": ["stay"], "resources": {"limits": limits}}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [main]}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"}, "spec": spec}
    await plugin.cluster.apply(manifest, namespace=plugin.namespace)
    await plugin.cluster.until_pod("user", "Running", namespace=plugin.namespace)


@pytest.fixture(autouse=True)
async def clean_node(namespace: Namespace) -> None:
    """No test finds what another one's plugin has left on the node."""
    for folder in ("lib/kdp", "run/cdi"):
        for file in (namespace.cluster.work / folder).glob("*"):
            file.unlink()


async def test_with_all_that_is_written_every_check_holds(
    namespace: Namespace, generic_image: Path, written: list[Object]
) -> None:
    async with deployed(namespace, generic_image, written) as plugin:
        await plugin.until_ready()
        await use_a_device(plugin)
        for check in CHECKS:
            assert await check(plugin), check.__doc__
        log = await plugin.until_said("connected")
        assert not re.search("ERROR|CRITICAL", log), log


@pytest.mark.parametrize("missing", MISSING, ids=lambda missing: missing.what)
async def test_without_one_thing_its_check_fails_and_the_log_says_why(
    namespace: Namespace, generic_image: Path, written: list[Object], missing: Missing
) -> None:
    async with deployed(namespace, generic_image, without(written, missing.what)) as plugin:
        if missing.breaks is is_registered:
            await plugin.until_said(missing.says)
        else:
            await plugin.until_said("connected")
            if missing.breaks not in (sees_nodes, knows_sysfs):
                await plugin.until_ready()
                await use_a_device(plugin)
            await plugin.until_said(missing.says)
        assert not await missing.breaks(plugin), missing.breaks.__doc__


async def test_without_its_file_it_ends_with_the_sentence(
    namespace: Namespace, generic_image: Path, written: list[Object]
) -> None:
    async with deployed(namespace, generic_image, without(written, "config")[-1:]) as plugin:
        await plugin.until_said("/etc/kdp/devices.yaml: cannot be read (No such file or directory)")

        async def is_told() -> bool:
            states = (await plugin.pod())["status"]["containerStatuses"][0]
            ended = states["state"].get("terminated") or states["lastState"].get("terminated") or {}
            return ended.get("exitCode") == 2 and "cannot be read" in ended.get("message", "")

        await plugin.cluster.until(is_told, "the pod's status has the sentence and exit code 2", every=0.05)


async def test_without_the_right_to_open_it_says_which_is_missing(namespace: Namespace, generic_image: Path) -> None:
    required("/dev/hwrng")
    documents = without(rendered(namespace, "hwrng", "--set=count=2"), "privileged")
    async with deployed(namespace, generic_image, documents) as plugin:
        await plugin.until_ready()
        await plugin.cluster.until_counted("example.com/hwrng", capacity=2, allocatable=0)
        said = await plugin.exec("kdp", "devices", *(await _arguments(plugin)))
        assert "the plugin may not open /dev/hwrng (Operation not permitted): its container must be privileged" in said


async def test_each_mount_has_a_check(written: list[Object]) -> None:
    [container] = written[-1]["spec"]["template"]["spec"]["containers"]
    mounts = {_kind_of(each["name"]) for each in container["volumeMounts"]}
    assert mounts - {"config"} == {missing.what for missing in MISSING} - {"runAsUser"}


# -- pods --------------------------------------------------------------------------------------------------------------


async def refusal(namespace: Namespace, resources: dict[str, Any]) -> str:
    """Return what the API server says of a pod with these requests and limits."""
    manifest = pod_of("minimal")
    manifest["spec"]["containers"][0]["resources"] = resources
    with pytest.raises(RuntimeError) as refused:
        await namespace.cluster.apply(manifest, namespace=namespace.name)
    return str(refused.value)


@pytest.mark.parametrize(
    ("resources", "sentence"),
    [
        (
            {"requests": {"example.com/fuse": 1}},
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            {"requests": {"example.com/fuse": 1}, "limits": {"example.com/fuse": 2}},
            'spec.containers[0].resources.requests: Invalid value: "1": must be equal to example.com/fuse limit of 2',
        ),
        (
            {"limits": {"example.com/fuse": "500m"}},
            'spec.containers[0].resources.limits[example.com/fuse]: Invalid value: "500m": must be an integer',
        ),
        (
            {"limits": {"fuse": 1}},
            'spec.containers[0].resources.limits[fuse]: Invalid value: "fuse": must be a standard resource type',
        ),
    ],
    ids=["no limit", "unequal", "a fraction", "no domain"],
)
async def test_the_api_server_refuses_what_no_node_could_give(
    namespace: Namespace, resources: dict[str, Any], sentence: str
) -> None:
    said = await refusal(namespace, resources)

    assert sentence in said
    page = (EXAMPLES.parent / "docs/how-to/request-devices.md").read_text()
    assert sentence in page, "the page has it in these words"


async def test_the_scheduler_says_what_no_node_has(namespace: Namespace) -> None:
    sentence = "0/1 nodes are available: 1 Insufficient example.com/fsue."
    manifest = pod_of("minimal")
    manifest["spec"]["containers"][0]["resources"]["limits"] = {"example.com/fsue": 1}
    await namespace.cluster.apply(manifest, namespace=namespace.name)

    def is_told(pod: Object) -> bool:
        conditions = pod["status"].get("conditions", ())
        return pod["status"]["phase"] == "Pending" and any(sentence in each.get("message", "") for each in conditions)

    await namespace.cluster.until_object("v1/pods", "opens-fuse", is_told, "is Pending", namespace=namespace.name)
    page = (EXAMPLES.parent / "docs/how-to/request-devices.md").read_text()
    assert sentence in page, "the page has it in these words"
