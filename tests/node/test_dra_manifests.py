"""What `kdp manifests --mode dra` writes, applied to a real cluster: whole, and with each right missing in turn."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import pytest

from .backend import Figure
from .conftest import Namespace
from .nodekit.cluster import NODE, Object, is_ready
from .nodekit.image import STAY
from .nodekit.machine import IMAGE as BUSYBOX
from .stolen import MERGE, PLAIN, with_stolen_token
from .test_manifests import Plugin, answers_commands, deployed, impatient, render, rendered, required, without

DRIVER: Final = "fuse.example.com"
SLICES: Final = "resource.k8s.io/v1/resourceslices"
CLUSTERS_OWN: Final = {
    "ClusterRoleBinding": "rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ClusterRole": "rbac.authorization.k8s.io/v1/clusterroles",
    "ValidatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "DeviceClass": "resource.k8s.io/v1/deviceclasses",
}


@pytest.fixture
async def written(namespace: Namespace) -> AsyncIterator[list[Object]]:
    """A driver's manifest; what it makes outside of the namespace is gone at the end."""
    required("/dev/fuse")
    documents = rendered(namespace, "minimal", "--set=count=3", "--mode=dra", "--extended-resource")
    try:
        yield documents
    finally:
        await cleared(namespace, documents)


@asynccontextmanager
async def removed(namespace: Namespace, documents: Sequence[Object]) -> AsyncIterator[None]:
    """What a manifest makes is gone at the end."""
    try:
        yield
    finally:
        await cleared(namespace, documents)


async def cleared(namespace: Namespace, documents: Sequence[Object]) -> None:
    """Remove what a driver's manifest makes, within the namespace and outside of it."""
    cluster = namespace.cluster
    # The users first: without a driver the kubelet cannot give back what they hold, and they stay for ever.
    await cluster.clear_pods(namespace.name, selector="!app.kubernetes.io/name")
    await cluster.api("DELETE", f"/apis/apps/v1/namespaces/{namespace.name}/daemonsets")
    await cluster.clear_pods(namespace.name)
    for document in documents:
        resource = CLUSTERS_OWN.get(document["kind"], "")
        name = document["metadata"]["name"]
        if resource and await cluster.get(resource, name):
            await cluster.delete(resource, name)
    await cluster.api("DELETE", f"/apis/{SLICES}")


def template() -> Object:
    request = {"name": "fuse", "exactly": {"deviceClassName": DRIVER}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one-fuse"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def user(name: str, *, by_claim: bool, script: str = f": <> /dev/fuse && echo opened; {STAY}") -> Object:
    """Return a pod that opens a device, of its claim or of the extended resource."""
    resources: Object = {"claims": [{"name": "fuse"}]} if by_claim else {"limits": {"example.com/fuse": 1}}
    command = ["/bin/sh", "-c", script]
    main = {"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": command, "resources": resources}
    spec: Object = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main]}
    if by_claim:
        spec["resourceClaims"] = [{"name": "fuse", "resourceClaimTemplateName": "one-fuse"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def devices(plugin: Plugin) -> int:
    slices = [each for each in await plugin.cluster.list(SLICES) if each["spec"]["driver"] == DRIVER]
    return sum(len(each["spec"].get("devices", ())) for each in slices)


async def until_published(plugin: Plugin) -> None:
    async def is_so() -> bool:
        return await devices(plugin) == 3

    await plugin.cluster.until(is_so, "3 devices are published", every=0.05)


async def use(plugin: Plugin, name: str, *, by_claim: bool = True) -> None:
    await plugin.cluster.apply(template(), user(name, by_claim=by_claim), namespace=plugin.namespace)
    await plugin.cluster.until_said(name, "opened", namespace=plugin.namespace)
    await plugin.cluster.until_pod(name, "Running", namespace=plugin.namespace)  # told a moment after it runs


# -- as written --------------------------------------------------------------------------------------------------------


async def test_pods_open_devices_by_claim_and_by_number(
    namespace: Namespace, generic_image: Path, written: list[Object], figure: Figure
) -> None:
    async with deployed(namespace, generic_image, written) as plugin:
        await plugin.until_ready()
        await until_published(plugin)
        await use(plugin, "by-claim")
        await use(plugin, "by-number", by_claim=False)

        pod = await plugin.cluster.get("v1/pods", "by-number", namespace=plugin.namespace)
        assert pod is not None
        [mapping] = pod["status"]["extendedResourceClaimStatus"]["requestMappings"]
        assert mapping["resourceName"] == "example.com/fuse"
        node = await plugin.cluster.get("v1/nodes", NODE)
        assert node is not None
        assert int(node["status"]["allocatable"].get("example.com/fuse", 0)) == 0, "no device plugin was there"
        assert (plugin.cluster.work / "lib/kdp/example.com_fuse.dra.lock").exists()

        status = await plugin.exec("cat", "/proc/1/status")
        memory = {
            name: int(kib) / 1024 for name, kib in re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB", status, re.MULTILINE)
        }
        figure("cluster: a DRA driver's memory as deployed", memory["VmRSS"], "MiB")
        assert memory["VmHWM"] < 96
        assert re.search(r"^CapEff:\s+0{16}$", status, re.MULTILINE), status
        assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE), status
        log = await plugin.until_said("registered with the kubelet")
        assert not re.search("WARNING|ERROR|CRITICAL", log), log


async def test_metrics_name_the_pod_of_a_claims_device(
    namespace: Namespace, generic_image: Path, written: list[Object]
) -> None:
    """They named none: a claim has no container, but the kubelet's pod-resources API has both."""
    documents = rendered(namespace, "minimal", "--set=count=3", "--mode=dra", "--metrics=pods")
    async with deployed(namespace, generic_image, impatient(documents)) as plugin:
        await plugin.until_ready()
        await until_published(plugin)
        await use(plugin, "user")
        wanted = (f'namespace="{namespace.name}"', 'pod="user"', 'container="main"', f'driver_name="{DRIVER}"')

        async def is_named() -> bool:
            said = await plugin.exec("wget", "-q", "-O", "-", "http://127.0.0.1:8080/metrics")
            held = [line for line in said.splitlines() if line.startswith("kdp_device_allocation{")]
            return len(held) == 1 and all(each in held[0] for each in wanted)

        await plugin.cluster.until(is_named, "the metrics name the pod", every=0.5)


async def test_an_update_overlaps_and_no_pod_fails(
    namespace: Namespace, generic_image: Path, written: list[Object]
) -> None:
    documents = impatient(written)
    async with deployed(namespace, generic_image, documents) as plugin:
        await plugin.until_ready()
        await until_published(plugin)
        await use(plugin, "before")
        old = (await plugin.pod())["metadata"]["name"]
        changed: Object = json.loads(json.dumps(documents[-1]))
        changed["spec"]["template"]["metadata"]["annotations"] = {"release": "2"}
        await plugin.cluster.apply(changed, namespace=plugin.namespace)
        await use(plugin, "during")
        await plugin.until_ready()
        assert (await plugin.pod())["metadata"]["name"] != old
        await use(plugin, "after")
        for name in ("before", "during", "after"):
            pod = await plugin.cluster.get("v1/pods", name, namespace=plugin.namespace)
            assert pod is not None
            assert pod["status"]["phase"] == "Running"
        events = await plugin.cluster.list("v1/events", namespace=plugin.namespace)
        assert not [each["message"] for each in events if each["reason"] == "FailedPrepareDynamicResources"]
        await plugin.cluster.delete("v1/pods", "before", namespace=plugin.namespace)

        def is_undone() -> bool:
            return len(list((plugin.cluster.work / "run/cdi").glob("*fuse*"))) <= 3

        await plugin.cluster.until(is_undone, "the new driver has undone what the old one prepared", every=0.05)


# -- the policy --------------------------------------------------------------------------------------------------------


def a_slice(*, node: str | None = NODE, driver: str = DRIVER) -> Object:
    pool = {"name": "stolen", "generation": 1, "resourceSliceCount": 1}
    place: Object = {"nodeName": node} if node is not None else {"allNodes": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "stolen"},
        "spec": {"driver": driver, "pool": pool, "devices": [], **place},
    }


async def as_driver(plugin: Plugin, item: Object, *, of_pod: bool = True) -> str:
    """Create a slice with a token of the driver's account, bound to its pod or to nothing; return the refusal."""
    pod = (await plugin.pod())["metadata"]
    bound = ["--bound-object-kind=Pod", f"--bound-object-name={pod['name']}", f"--bound-object-uid={pod['uid']}"]
    token = await plugin.cluster.kubectl(
        "create", "token", plugin.name, f"--namespace={plugin.namespace}", *(bound if of_pod else ())
    )
    config = json.loads((plugin.cluster.work / "admin.kubeconfig").read_text())
    config["users"][0]["user"] = {"token": token.strip()}
    file = plugin.cluster.work / "stolen.kubeconfig"
    file.write_text(json.dumps(config))
    try:
        await plugin.cluster.kubectl(f"--kubeconfig={file}", "create", "--filename=-", stdin=json.dumps(item))
    except RuntimeError as error:
        return str(error)
    finally:
        file.unlink()
    await plugin.cluster.delete(SLICES, item["metadata"]["name"])
    return ""


async def test_the_policy_binds_slices_to_the_node_and_the_driver(
    namespace: Namespace, generic_image: Path, written: list[Object]
) -> None:
    async with deployed(namespace, generic_image, impatient(written)) as plugin:
        await plugin.until_ready()
        assert await as_driver(plugin, a_slice()) == ""
        said = await as_driver(plugin, a_slice(node="node1"))
        assert f"a driver on node {NODE} may not write a slice of node node1" in said
        assert "may not write a slice of node none" in await as_driver(plugin, a_slice(node=None))
        said = await as_driver(plugin, a_slice(driver="other.example.com"))
        assert f"{DRIVER} may not write a slice of the driver other.example.com" in said
        assert "the token names no node" in await as_driver(plugin, a_slice(), of_pod=False)


TIME: Final = "2026-01-01T00:00:00Z"
CLAIMS: Final = "resource.k8s.io/v1/resourceclaims"


async def allocated(plugin: Plugin, name: str, *results: Object, devices: Sequence[Object] = ()) -> str:
    """Make a claim that has these devices, as a scheduler would, and return the path of its status."""
    namespace = plugin.namespace
    request = {"name": "r", "exactly": {"deviceClassName": DRIVER}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }
    await plugin.cluster.apply(claim, namespace=namespace)
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}/status"
    if results:
        made = await plugin.cluster.get(CLAIMS, name, namespace=namespace)
        assert made is not None
        found = [{"request": "r", "device": "d", **each} for each in results]
        field = {"key": "metadata.name", "operator": "In", "values": [results[0]["pool"]]}
        place = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        made["status"] = {"allocation": {"devices": {"results": found}, "nodeSelector": place}, "devices": [*devices]}
        await plugin.cluster.api("PUT", path, made)
    return path


async def test_a_stolen_token_writes_nothing_but_what_its_driver_may(namespace: Namespace, generic_image: Path) -> None:
    """What a driver may not write, RBAC or a policy refuses, also with the token in its pod."""
    documents = rendered(namespace, "minimal", "--set=count=3", "--mode=dra", "--device-status=on")
    async with removed(namespace, documents), deployed(namespace, generic_image, impatient(documents)) as plugin:
        await plugin.until_ready()
        await until_published(plugin)
        asked = functools.partial(with_stolen_token, plugin)

        async def with_status(path: str, **status: object) -> str:
            claim = await plugin.cluster.get(CLAIMS, path.split("/")[-2], namespace=plugin.namespace)
            assert claim is not None
            claim["status"] = {**claim.get("status", {}), **status}
            return await asked("PUT", path, PLAIN, claim)

        ours = {"driver": DRIVER, "pool": NODE}
        ready = [{"type": "Ready", "status": "True", "reason": "Told", "message": "", "lastTransitionTime": TIME}]
        entry = {**ours, "device": "d", "conditions": ready}
        theirs = {"driver": "other.example.com", "pool": NODE, "device": "d"}
        own = await allocated(plugin, "own", ours)
        assert (await with_status(own, devices=[entry])).startswith("200")
        user: Object = {"resource": "pods", "name": "intruder", "uid": "intruder"}
        # From 1.36 on, the API server says this before any policy does.
        said = await with_status(own, reservedFor=[user])
        assert "a driver may change status.devices of a claim only" in said or "resourceclaims/binding" in said, said
        for name, results in {"elsewhere": [{**ours, "pool": "node1"}], "foreign": [theirs], "free": []}.items():
            path = await allocated(plugin, name, *results)
            said = await with_status(path)
            assert f"only that has its devices of pool {NODE}" in said, said
        both = await allocated(plugin, "both", ours, theirs, devices=[theirs])
        said = await with_status(both, devices=[])
        assert "its own entries of status.devices only" in said or "resourceclaims/driver" in said, said

        event: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "x", "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE},
            "reason": "Told",
            "message": "by an intruder",
            "type": "Normal",
            "action": "Told",
        }
        events = "/api/v1/namespaces/default/events"
        for component, node in (("kubelet", NODE), (DRIVER, "node1")):
            told = {**event, "reportingComponent": component, "reportingInstance": node}
            said = await asked("POST", events, PLAIN, told)
            assert f"a driver may write Events of {DRIVER} on its own node only" in said, said
        told = {**event, "reportingComponent": DRIVER, "reportingInstance": NODE}
        assert (await asked("POST", events, PLAIN, told)).startswith("201")

        forbidden = (
            ("GET", "/api/v1/secrets"),
            ("GET", f"/api/v1/namespaces/{plugin.namespace}/pods"),
            ("POST", f"/api/v1/namespaces/{plugin.namespace}/pods"),
            ("PATCH", f"/api/v1/nodes/{NODE}"),
            ("DELETE", own.removesuffix("/status")),
            ("DELETE", f"{events}/x"),
            ("POST", "/apis/resource.k8s.io/v1/deviceclasses"),
        )
        for method, path in forbidden:
            said = await asked(method, path, MERGE if method == "PATCH" else PLAIN, {})
            assert said.startswith("403"), (method, path, said)


# -- without one thing -------------------------------------------------------------------------------------------------


async def is_registered(plugin: Plugin) -> bool:
    """The kubelet has registered the driver, which is what its readiness says."""
    return is_ready(await plugin.pod())


async def publishes(plugin: Plugin) -> bool:
    """Its devices are published."""
    return await devices(plugin) == 3


async def sees_nodes(plugin: Plugin) -> bool:
    """What is in the node's /dev is found: no device has the taint of an unhealthy one."""
    found = [each for each in await plugin.cluster.list(SLICES) if each["spec"]["driver"] == DRIVER]
    return not any(device.get("taints") for each in found for device in each["spec"].get("devices", ()))


async def offers(plugin: Plugin) -> bool:
    """A claim can get a device: the driver is ready, and no device has the taint of an unhealthy one."""
    return is_ready(await plugin.pod()) and await sees_nodes(plugin)


async def prepares(plugin: Plugin) -> bool:
    """A pod with a claim runs."""
    pod = await plugin.cluster.get("v1/pods", "user", namespace=plugin.namespace)
    return pod is not None and pod["status"]["phase"] == "Running"


async def keeps_the_other_mode_away(plugin: Plugin) -> bool:
    """Its lock is on the node."""
    return (plugin.cluster.work / "lib/kdp/example.com_fuse.dra.lock").exists()


async def _log(plugin: Plugin) -> str:
    pod = (await plugin.pod())["metadata"]["name"]
    return await plugin.cluster.logs(pod, namespace=plugin.namespace)


async def knows_who_holds(plugin: Plugin) -> bool:
    """It asks the kubelet for the pods that a device plugin has given devices."""
    return "pods that a device plugin gave devices are not seen" not in await _log(plugin)


Check = Callable[[Plugin], Awaitable[bool]]


@attrs.frozen
class Missing:
    """One thing that is taken away.

    Attributes:
        what: A volume's name, a variable, or ``VERB RESOURCE``.
        breaks: The check that fails then.
        says: What the driver's log, or the pod's events for a claim, say of it.
    """

    what: str
    breaks: Check
    says: str


MISSING: Final = (
    Missing("registry", is_registered, "the plugin watcher's directory /var/lib/kubelet/plugins_registry is missing"),
    Missing("driver", is_registered, "/var/lib/kubelet/plugins"),
    Missing("cdi", offers, "/var/run/cdi"),
    Missing("state", keeps_the_other_mode_away, "/var/lib/kdp: no locks there"),
    Missing("pod-resources", knows_who_holds, "there is no /var/lib/kubelet/pod-resources/kubelet.sock"),
    Missing("node-dev", sees_nodes, ""),
    Missing("run", answers_commands, "no command can ask this process yet"),
    Missing("KDP_NODE_NAME", is_registered, "needs the node's name, as the API server has it"),
    Missing("list resourceslices", publishes, "a role must grant the verb 'list' on 'resourceslices'"),
    Missing("create resourceslices", publishes, "a role must grant the verb 'create' on 'resourceslices'"),
    Missing("get nodes", publishes, "a role must grant the verb 'get' on 'nodes'"),
    Missing("get resourceclaims", prepares, "a role must grant the verb 'get' on 'resourceclaims'"),
)


def lacking(documents: list[Object], what: str) -> list[Object]:
    """Return a manifest without one mount, variable or right."""
    verb, _, resource = what.partition(" ")
    if not resource and not what.startswith("KDP_"):
        return without(documents, what)
    changed = impatient(documents)
    if resource:
        [role] = [each for each in changed if each["kind"] == "ClusterRole"]
        [rule] = [each for each in role["rules"] if each["resources"] == [resource]]
        rule["verbs"].remove(verb)
        if not rule["verbs"]:
            role["rules"].remove(rule)
    else:
        [container] = changed[-1]["spec"]["template"]["spec"]["containers"]
        container["env"] = [each for each in container["env"] if each["name"] != what]
    return changed


@pytest.mark.parametrize("missing", MISSING, ids=lambda missing: missing.what)
async def test_without_one_thing_its_check_fails_and_it_is_said_why(
    namespace: Namespace, generic_image: Path, written: list[Object], missing: Missing
) -> None:
    for file in (namespace.cluster.work / "lib/kdp").glob("*.lock"):
        file.unlink()
    async with deployed(namespace, generic_image, lacking(written, missing.what)) as plugin:
        if missing.breaks is prepares:
            await plugin.until_ready()
            await until_published(plugin)
            await plugin.cluster.apply(template(), user("user", by_claim=True), namespace=plugin.namespace)

            async def is_told() -> bool:
                events = await plugin.cluster.list("v1/events", namespace=plugin.namespace)
                return any(
                    each["reason"] == "FailedPrepareDynamicResources" and missing.says in each["message"]
                    for each in events
                )

            await plugin.cluster.until(is_told, f"the pod is told {missing.says!r}", every=0.05)
        elif missing.breaks is sees_nodes:
            await until_published(plugin)
        else:
            await plugin.until_said(missing.says)
        assert not await missing.breaks(plugin), missing.breaks.__doc__


async def test_each_mount_has_a_check(written: list[Object]) -> None:
    [container] = written[-1]["spec"]["template"]["spec"]["containers"]
    mounts = {each["name"] for each in container["volumeMounts"]}
    assert mounts <= {missing.what for missing in MISSING}


async def test_a_kustomize_base_has_the_same(written: list[Object], namespace: Namespace, tmp_path: Path) -> None:
    arguments = ("minimal", "--set=count=3", "--mode=dra", "--extended-resource", "--image=i")
    render(*arguments, f"--namespace={namespace.name}", "--format=kustomize", "-o", tmp_path)
    said = await namespace.cluster.kubectl("kustomize", str(tmp_path))
    assert {f"kind: {each['kind']}" for each in written} <= set(said.splitlines())
