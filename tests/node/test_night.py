"""Three in the morning: failures of a real node, and what each source tells of the cause.

Each test provokes one failure in a real cluster, and asks ``kdp doctor`` until its answer names the cause. Then the
other sources must come to say something wherever ``docs/explanation/night.md`` says that they do; ``make night`` writes
that page.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Final, Literal

import anyio
import anyio.to_thread
import attrs
import pytest

from . import night_page
from .backend import Figure
from .conftest import Namespace
from .night import FOLDER, RESOURCE
from .night_page import Named, Told
from .nodekit import Cluster
from .nodekit.alarms import Alarms, rules
from .nodekit.cluster import NODE, Object
from .nodekit.image import STAY
from .nodekit.machine import IMAGE as BUSYBOX
from .nodekit.tools import tool
from .test_dra_manifests import CLUSTERS_OWN
from .test_dra_manifests import template as claim_template
from .test_dra_manifests import user as pod_with_claim
from .test_manifests import Plugin, impatient, rendered, without

DRIVER: Final = "night.example.com"
SECONDS: Final = 60.0
"""In which one command must tell the cause."""

ALERTS_LAST: Final = 5.0
"""Seconds after which an alert is still there that is not of the failure's first moment."""

Place = Literal["container", "node", "laptop"]


@attrs.define
class Node:
    """A node and its plugin, and what goes wrong with them.

    Attributes:
        namespace: Where the plugin runs.
        documents: The plugin's deployment, which a failure changes before it is applied.
        driver: The same class as a DRA driver.
        alarms: Watches the plugin.
        former: The alerts of what an earlier test has left of the node's numbers.
        undo: What ends the failure.
    """

    namespace: Namespace
    documents: list[Object]
    driver: list[Object]
    alarms: Alarms
    former: Collection[str] = ()
    undo: list[Callable[[], Awaitable[object]]] = attrs.field(factory=list)

    @property
    def cluster(self) -> Cluster:
        return self.namespace.cluster

    @property
    def plugin(self) -> Plugin:
        return Plugin(self.cluster, self.namespace.name, self.documents[-1]["metadata"]["name"])

    @property
    def container(self) -> Object:
        [container] = self.documents[-1]["spec"]["template"]["spec"]["containers"]
        found: Object = container
        return found

    def wrong(self, what: str) -> None:
        """Say what is wrong with the hardware."""
        folder = self.cluster.work / FOLDER.removeprefix("/")
        folder.mkdir(exist_ok=True)
        hidden = folder / ".wrong"
        hidden.write_text(what)
        hidden.rename(folder / "wrong")

    async def deploy(self) -> None:
        """Apply the deployment; returns when its container runs."""
        await self.cluster.apply(*self.documents, namespace=self.namespace.name)

        async def runs() -> bool:
            with contextlib.suppress(ValueError):  # there is no pod yet
                [status] = (await self.plugin.pod())["status"].get("containerStatuses") or [{}]
                return "running" in status.get("state", {})
            return False

        await self.cluster.until(runs, "the plugin's container runs", every=0.05)

    async def serve(self) -> None:
        """Have a plugin in order, which Prometheus has scraped."""
        await self.deploy()
        await self.plugin.until_ready()
        await self.cluster.until_counted(RESOURCE, capacity=2, allocatable=2)
        await self.alarms.until("kdp_build_info")

    async def use(self, name: str = "user") -> None:
        """Have a pod that asks for a device."""
        main = {"name": "main", "image": BUSYBOX, "command": ["stay"], "resources": {"limits": {RESOURCE: 1}}}
        spec = {"terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "containers": [main]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        await self.cluster.apply(pod, namespace=self.namespace.name)

    async def shell(self, script: str) -> str:
        """Run a script in the plugin's container, also without a kubelet; its exit code is not looked at."""
        try:
            process = await anyio.to_thread.run_sync(_process_of, (await self.plugin.pod())["metadata"]["uid"])
        except (AssertionError, ValueError):  # it has ended, or there is none
            return ""
        environment = await anyio.Path(f"/proc/{process}/environ").read_text()
        where = ("nsenter", f"--target={process}", "--all", "env", "-i", *environment.strip("\0").split("\0"))
        done = await anyio.run_process(["timeout", "20", *where, "sh", "-c", f"{script}; true"], check=False)
        return done.stdout.decode(errors="replace")

    async def doctor(self, place: Place) -> list[Object]:
        """Return the bad answers of ``kdp doctor``, in the container, on the node, or on a laptop."""
        if place == "container":
            said = await self.plugin.exec("sh", "-c", "kdp doctor --format json; true")
        else:
            of_node = f"--node-name {NODE}" if place == "laptop" else ""
            said = await self.cluster.run("sh", "-c", f"{sys.executable} -m kdp doctor {of_node} --format json; true")
        found: list[Object] = json.loads(said)["questions"]
        return [each for each in found if each["answer"] in {"failed", "warning"}]

    def replace(self, option: str, value: str) -> None:
        """Have another value of an option in the container's arguments."""
        rest = [each for each in self.container["args"] if not each.startswith(f"{option}=")]
        self.container["args"] = [*rest, f"{option}={value}"]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


async def kubelet_frozen(node: Node) -> None:
    await node.serve()
    node.cluster.freeze("kubelet")

    async def go_on() -> None:
        node.cluster.thaw("kubelet")
        await node.cluster.restart()

    node.undo.append(go_on)


async def kubelet_gone(node: Node) -> None:
    await node.serve()
    await node.cluster.crash()
    node.undo.append(node.cluster.start)


async def plugin_frozen(node: Node) -> None:
    await node.serve()
    uid = (await node.plugin.pod())["metadata"]["uid"]
    os.kill(_process_of(uid), signal.SIGSTOP)


def _process_of(uid: str) -> int:
    """Return the process of a plugin's pod, as this machine counts."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if uid in (process / "cgroup").read_text() and b"kdp\0run" in (process / "cmdline").read_bytes():
                return int(process.name)
    raise AssertionError(f"no process of pod {uid} runs")


async def another_plugin(node: Node) -> None:
    await node.serve()
    twin: list[Object] = json.loads(json.dumps(node.documents).replace(node.plugin.name, f"{node.plugin.name}-twin"))
    await node.cluster.apply(*twin, namespace=node.namespace.name)
    await node.cluster.until_said(
        f"{node.plugin.name}-twin-*", "connected to the kubelet", namespace=node.namespace.name
    )


async def driver_missing(node: Node) -> None:
    node.wrong("driver")
    await node.deploy()


async def cards_sick(node: Node) -> None:
    await node.serve()
    node.wrong("sick")


async def discovery_hangs(node: Node) -> None:
    node.wrong("hang")
    await node.deploy()


async def device_node_gone(node: Node) -> None:
    await node.serve()
    node.wrong("gone")


async def no_plugin_directory(node: Node) -> None:
    node.documents = without(node.documents, "device-plugins")
    await node.deploy()


async def not_root(node: Node) -> None:
    node.documents = without(node.documents, "runAsUser")
    await node.deploy()


async def no_pod_resources(node: Node) -> None:
    node.documents = without(node.documents, "pod-resources")
    await node.deploy()


async def no_state(node: Node) -> None:
    node.documents = without(node.documents, "state")
    await node.deploy()


async def cdi_read_only(node: Node) -> None:
    node.replace("--cdi", "only")
    for mount in node.container["volumeMounts"]:
        if mount["name"] == "cdi":
            mount["readOnly"] = True
    await node.deploy()


async def kubelet_elsewhere(node: Node) -> None:
    node.replace("--device-plugin-dir", "/var/lib/k0s/kubelet/device-plugins")
    await node.deploy()


async def edit_refused(node: Node) -> None:
    await node.serve()
    uid = (await node.plugin.pod())["metadata"]["uid"]
    file = _volume(node, uid)
    edited = [each for each in node.documents if each["kind"] == "ConfigMap"]
    for document in edited:
        document["data"] = {file.name: "poll-intervall: 5\n"}
    await node.cluster.apply(*edited, namespace=node.namespace.name)
    file.write_text("poll-intervall: 5\n")  # the kubelet brings the edit there as well, in a minute
    await node.shell("kill -HUP 1")


def _volume(node: Node, uid: str) -> Path:
    """Return the file of the ConfigMap as the pod has it."""
    [file] = (node.cluster.work / "lib/kubelet/pods" / uid / "volumes").glob("*configmap/config/..data/*")
    return file


async def image_missing(node: Node) -> None:
    await node.serve()
    node.container.update(image="registry.invalid/kdp-night:1", imagePullPolicy="IfNotPresent")
    await node.cluster.apply(*node.documents, namespace=node.namespace.name)


async def too_little_memory(node: Node) -> None:
    await node.serve()
    node.container["resources"] = {"requests": {"memory": "20Mi"}, "limits": {"memory": "20Mi"}}
    await node.cluster.apply(*node.documents, namespace=node.namespace.name)


async def file_edited_badly(node: Node) -> None:
    cards = node.cluster.work / FOLDER.removeprefix("/") / "cards"
    cards.write_text("night0 night1")
    node.container["args"] = [each.replace("night:Night", "night:NightOfFile") for each in node.container["args"]]
    await node.serve()
    cards.write_text("night0 card1")


async def kubelet_socket_removed(node: Node) -> None:
    await node.serve()
    node.cluster.paths.kubelet_socket.unlink()
    node.undo.append(node.cluster.restart)


async def disk_full(node: Node) -> None:
    await _on_own_disk(node, "size=64k")
    await node.serve()
    await node.cluster.run("sh", "-c", "dd if=/dev/zero of=/var/lib/kdp/filler bs=1k; true")


async def disk_read_only(node: Node) -> None:
    await _on_own_disk(node, "ro")
    await node.deploy()


async def _on_own_disk(node: Node, options: str) -> None:
    """Have the node's directory of kdp on a file system of its own."""
    await node.cluster.run("sh", "-c", f"mkdir -p /var/lib/kdp; mount -t tmpfs -o {options} kdp /var/lib/kdp")

    async def unmount() -> None:
        await node.cluster.api("DELETE", f"/apis/apps/v1/namespaces/{node.namespace.name}/daemonsets")
        await node.cluster.clear_pods(node.namespace.name)
        await node.cluster.run("umount", "--lazy", "/var/lib/kdp")

    node.undo.append(unmount)


async def label_missing(node: Node) -> None:
    node.documents[-1]["spec"]["template"]["spec"]["nodeSelector"] = {"example.com/night": "yes"}
    await node.cluster.kubectl("label", "node", NODE, "example.com/night=yes")

    async def without_label() -> object:
        return await node.cluster.kubectl("label", "node", NODE, "example.com/night-")

    node.undo.append(without_label)  # the remedy labels the node again
    await node.serve()
    await without_label()
    await node.cluster.clear_pods(node.namespace.name)


async def pod_security(node: Node) -> None:
    await node.serve()
    label = "pod-security.kubernetes.io/enforce=baseline"
    await node.cluster.kubectl("label", "namespace", node.namespace.name, label)
    await node.cluster.clear_pods(node.namespace.name)


async def rights_pruned(node: Node) -> None:
    node.documents = node.driver
    [binding] = [each for each in node.documents if each["kind"] == "ClusterRoleBinding"]
    node.documents.remove(binding)
    await node.deploy()


async def driver_deleted(node: Node) -> None:
    node.documents = node.driver
    await node.deploy()
    await node.plugin.until_ready()
    template = json.loads(json.dumps(claim_template()).replace("fuse.example.com", DRIVER))
    pod = pod_with_claim("user", by_claim=True, script=STAY)
    await node.cluster.apply(template, pod, namespace=node.namespace.name)
    await node.cluster.until_pod("user", "Running", namespace=node.namespace.name)
    await node.alarms.until("kdp_claims_prepared > 0")
    await node.cluster.delete("apps/v1/daemonsets", node.plugin.name, namespace=node.namespace.name)
    await node.cluster.clear_pods(node.namespace.name, selector=f"app.kubernetes.io/name={node.plugin.name}")
    await node.cluster.kubectl("delete", "pod", "user", f"--namespace={node.namespace.name}", "--wait=false")

    async def bring_it_back() -> None:
        await node.deploy()
        await node.cluster.clear_pods(node.namespace.name, selector="!app.kubernetes.io/name")

    node.undo.append(bring_it_back)


@attrs.frozen
class Failure:
    """A failure, and where its cause is named.

    Attributes:
        title: Its row in the table.
        provoke: Deploys the plugin and has it.
        question: The doctor's question that tells the cause.
        says: A pattern that is in its answer.
        place: Where the doctor is asked: on the node if the kubelet cannot run a command in a pod, and on a laptop if
            there is no container.
    """

    title: str
    provoke: Callable[[Node], Awaitable[None]]
    question: str
    says: str
    place: Place = "container"


FAILURES: Final = (
    Failure("the kubelet is frozen", kubelet_frozen, "kubelet-answers", "is stopped", place="node"),
    Failure("the kubelet does not run", kubelet_gone, "kubelet-socket", "nobody listens", place="node"),
    Failure("the plugin's process is frozen", plugin_frozen, "plugin", "is stopped"),
    Failure("another process serves the resource", another_plugin, "resource-served-elsewhere", RESOURCE),
    Failure("the driver is not loaded", driver_missing, "plugin-ready", "driver 'night' is not loaded"),
    Failure("all cards are sick", cards_sick, "resource-allocatable", "XID 79"),
    Failure("the vendor's code hangs", discovery_hangs, "plugin-ready", "discover"),
    Failure("a device node is gone", device_node_gone, "resource-allocatable", "/dev/night0"),
    Failure("the plugin directory is not mounted", no_plugin_directory, "kubelet-directory", "does not exist"),
    Failure("the plugin is not root", not_root, "kubelet-directory-writable", "65534"),
    Failure("the pod-resources API is not mounted", no_pod_resources, "pod-resources", "pod-resources"),
    Failure("the state directory is not mounted", no_state, "state-directory", "/var/lib/kdp"),
    Failure("CDI files cannot be written", cdi_read_only, "resource-allocatable", "/var/run/cdi"),
    Failure("an edit of the configuration is refused", edit_refused, "plugin-ready", "poll-intervall"),
    Failure("the plugin looks in another directory", kubelet_elsewhere, "plugin-ready", "k0s"),
    Failure("the image cannot be pulled", image_missing, "outside-plugin-pod-ready", "ImagePull", place="laptop"),
    Failure("the plugin has too little memory", too_little_memory, "outside-plugin-restarts", "OOM", place="laptop"),
    Failure("an edit of the class's file is bad", file_edited_badly, "plugin-ready", "card1"),
    Failure("kubelet.sock was removed", kubelet_socket_removed, "kubelet-socket", "there is no"),
    Failure("the disk of the state directory is full", disk_full, "state-directory", "no room left"),
    Failure("the disk of the state directory is read-only", disk_read_only, "state-directory", "read-only"),
    Failure("the node lacks the DaemonSet's label", label_missing, "outside-plugin-pod", "night=yes", place="laptop"),
    Failure("Pod Security forbids the pods", pod_security, "outside-daemonsets", "PodSecurity", place="laptop"),
    Failure("the driver's rights were pruned", rights_pruned, "dra-permissions", "403"),
    Failure(
        "the driver is deleted while a pod has a claim", driver_deleted, "outside-pods-terminating", DRIVER, "laptop"
    ),
)


# -- what mends it -----------------------------------------------------------------------------------------------------

PROGRAMS: Final = re.compile(
    r"(?:kubectl|kdp|systemctl|journalctl|kill|df|ls|findmnt|dmesg|mount -|ps|rm|chown|chmod) "
)
"""How a command of a remedy begins."""


def commands_of(remedy: str) -> list[str]:
    """Return the commands of a remedy, which come after a colon or a semicolon."""
    parts = [part.strip() for each in remedy.split("; ") for part in (each, each.rpartition(": ")[2])]
    return list(dict.fromkeys(each for each in parts if PROGRAMS.match(each)))


async def typed_in(node: Node, remedy: str) -> tuple[int, int]:
    """Type in each command of a remedy, and return how many there are, and how many a shell takes.

    The service manager is the tests' own, so what it would do is left to `Node.undo`.
    """
    good = 0
    commands = commands_of(remedy)
    for command in commands:
        if command.startswith(("systemctl ", "journalctl ")):
            good += command.split()[-1] in ("kubelet", "containerd") or "-u kubelet" in command
            continue
        kubectl, _, rest = command.partition(" ")
        shown = f"{tool('kubectl')} {rest}" if kubectl == "kubectl" else command
        python = f"{sys.executable} -m kdp {rest}" if kubectl == "kdp" else shown
        said = await node.cluster.run("sh", "-c", f"timeout 20 {python} </dev/null 2>&1; echo rc=$?")
        good += not re.search(r"not found|NotFound|Usage:|error: unable|rc=127|rc=2$", said)
    return len(commands), good


# -- what is told ------------------------------------------------------------------------------------------------------

ALARMS: Final = (
    r"kdp_not_ready{.*} 1\.0",
    r"kdp_registered{.*} 0\.0",
    r"kdp_device_faults{.*} [1-9].*",
    r"kdp_hooks_hanging [1-9].*",
    r"kdp_hook_failures_total{.*} [1-9].*",
    r'kdp_operations_total{.*result="(?!ok).*} [1-9].*',
    r"kdp_config_rejected 1\.0",
    r"kdp_directory_writable{.*} 0\.0",
    r"kdp_foreign_devices{.*} [1-9].*",
    r"kdp_contested{.*} 1.*",
    r"kdp_kubelet_disagrees{.*} 1\.0",
)
"""Series that say that something is wrong."""


async def name(node: Node, failure: Failure, began: float) -> tuple[Named, str]:
    """Ask the doctor until it names the cause; return its answer, and the remedy, which is not typed in yet.

    Raises:
        AssertionError: It does not name it in time.
    """
    bad: list[Object] = []
    while time.monotonic() < began + SECONDS:
        asked = time.monotonic()
        bad = await node.doctor(failure.place)
        now = time.monotonic()
        for place, each in enumerate(bad):
            if each["id"] == failure.question and re.search(failure.says, each["seen"]):
                named = Named(
                    answer=each["seen"], place=place + 1, command=now - asked, after=now - began, remedies=(0, 0)
                )
                return named, each["remedy"] or ""
        await anyio.sleep(0.2)
    pytest.fail(f"within {SECONDS:g} s the doctor did not name it: {json.dumps(bad, indent=1)}")


async def _alerts(node: Node) -> dict[str, str]:
    """Return the alerts that last, each with the time that its rule waits, as soon as there is one."""
    found: set[str] = set()

    async def last() -> bool:
        before = await node.alarms.raised()
        await anyio.sleep(ALERTS_LAST)
        found.update(before.keys() & (await node.alarms.raised()).keys())
        found.difference_update(node.former)
        return bool(found)

    await node.cluster.until(last, "an alert lasts", seconds=180.0)
    waits = {name: rule.get("for", "") for name, rule in rules().items()}
    return {name: waits[name].replace("m", " min") or "at once" for name in found}


async def _sources(node: Node) -> dict[str, str]:
    """Return what each of the other sources says, an empty text for nothing."""
    return {
        "`/readyz`": await _probe(node),
        "`kdp status`": await _status(node),
        "metrics": await _metrics(node),
        "Events": await _events(node),
        "log": await _log(node),
    }


async def _probe(node: Node) -> str:
    """Return what ``/readyz`` says, or that it does not answer."""
    said = await node.shell("kdp probe ready 2>&1")
    try:
        found = json.loads(said[said.index("{") :])
    except ValueError:
        return said.strip().splitlines()[-1] if said.strip() else "no answer"
    reasons = [found.get("reason"), *(each.get("reason") for each in found.get("backends") or ())]
    parts = {**found.get("resources", {}), **found.get("drivers", {})}
    reasons += [
        f"{name}, {each['state']}: {told}"
        for name, each in parts.items()
        for told in (each.get(key) for key in ("reason", "rival", "too_large", "kubelet", "cdi"))
        if isinstance(told, str)
    ]
    reasons.append((found.get("configuration") or {}).get("reason"))
    told = "; ".join(dict.fromkeys(each for each in reasons if each))
    return f"{'ready' if found['ready'] else 'not ready'}{f': {told}' if told else ''}"


async def _status(node: Node) -> str:
    lines = (await node.shell("kdp status 2>&1")).splitlines()
    return "\n".join([line.strip() for line in lines if line.strip()][1:4])


async def _metrics(node: Node) -> str:
    url = "http://127.0.0.1:8080/metrics"
    said = await node.shell(
        f"python3 -c \"import urllib.request as r; print(r.urlopen('{url}').read().decode())\" 2>&1"
    )
    return "\n".join(line for line in said.splitlines() if any(re.fullmatch(alarm, line) for alarm in ALARMS))


async def _events(node: Node) -> str:
    """Return what kdp's Events on the node say; the API server has them also while the kubelet does not run."""
    found = [
        f"{each['reason']}: {each['message']}"
        for each in await node.cluster.list("v1/events", namespace="default")
        if each["reportingComponent"] == "kdp" and RESOURCE in each["message"]
    ]
    return "\n".join(dict.fromkeys(found))


async def _log(node: Node) -> str:
    """Return the warnings and errors of the log, which lies on the node."""
    files = sorted((node.cluster.work / "log/pods").glob(f"{node.namespace.name}_{node.plugin.name}-*/*/*.log"))
    lines = (line.split(" ", 3)[-1] for file in files for line in file.read_text(errors="replace").splitlines())
    return "\n".join(line for line in lines if re.search("WARNING|ERROR|CRITICAL", line))


@pytest.fixture
async def node(namespace: Namespace, generic_image: Path, tmp_path: Path) -> AsyncIterator[Node]:
    """A node with the deployment of a plugin that has everything it may need; it is not applied yet."""
    for folder in ("lib/kdp", "run/cdi"):
        for file in (namespace.cluster.work / folder).glob("*"):
            file.unlink()
    await namespace.cluster.api("DELETE", "/api/v1/namespaces/default/events")
    (tmp_path / "kdp.yaml").write_text("poll-interval: 1\n")
    options = ("--cdi=beside", "--metrics=on", "--events=on", f"--config={tmp_path}/kdp.yaml")
    driver = rendered(namespace, "night:Night", "--mode=dra", "--metrics=on")
    await namespace.cluster.load(generic_image)
    async with Alarms(namespace.cluster, namespace.name) as alarms:
        found = Node(namespace, impatient(rendered(namespace, "night:Night", *options)), impatient(driver), alarms)
        found.wrong("nothing")
        found.former = (await alarms.raised()).keys()
        try:
            yield found
        finally:
            for undo in found.undo:
                await undo()
            for resource in CLUSTERS_OWN.values():
                for name in await namespace.cluster.names(resource):
                    if name.startswith(("kdp-night", DRIVER)):
                        await namespace.cluster.delete(resource, name)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.title)
async def test_one_command_tells_the_cause(node: Node, failure: Failure, figure: Figure) -> None:
    await failure.provoke(node)
    named, remedy = await name(node, failure, time.monotonic())
    figure(f"night: {failure.title}", named.after, "s until the doctor names it")
    if night_page.is_written():
        sources, alerts = await _sources(node), await _alerts(node)
    else:
        await _as_on_the_page(node, failure)
        sources, alerts = {}, {}
    # Last, because it may end the failure.
    named = attrs.evolve(named, remedies=await typed_in(node, remedy))
    count, good = named.remedies
    assert count == good, remedy
    night_page.leave(FAILURES.index(failure), failure.title, Told(doctor=named, sources=sources, alerts=alerts))


async def _as_on_the_page(node: Node, failure: Failure) -> None:
    """Wait until each source speaks, and each alert is raised, that the page has for a failure."""
    expected = {source: said for source, said in night_page.outcomes(failure.title).items() if said}

    async def speak() -> bool:
        return expected.items() <= night_page.outcomes_of(await _sources(node)).items()

    await node.cluster.until(speak, f"these sources speak, as in {night_page.PAGE.name}: {expected}")
    alerts = night_page.alerts(failure.title)

    async def wake() -> bool:
        return alerts <= (await node.alarms.raised()).keys()

    await node.cluster.until(
        wake, f"these alerts are raised, as in {night_page.PAGE.name}: {sorted(alerts)}", seconds=180.0
    )


def test_the_page_has_each_failure_with_an_alert() -> None:
    rows = re.findall(r"^\| (?!failure|---)(.+?) \| (.)", night_page.PAGE.read_text(), re.MULTILINE)
    titles = [each.title for each in FAILURES]
    assert [title for title, _ in rows] == [*titles, *titles]
    assert all(first == "`" for _, first in rows[len(titles) :])
