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
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

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
from .nodekit.cluster import Object
from .nodekit.machine import IMAGE as BUSYBOX
from .test_dra_manifests import CLUSTERS_OWN
from .test_manifests import Plugin, impatient, rendered, without

SECONDS: Final = 60.0
"""In which one command must tell the cause."""


@attrs.define
class Node:
    """A node and its plugin, and what goes wrong with them.

    Attributes:
        namespace: Where the plugin runs.
        documents: The plugin's deployment, which a failure changes before it is applied.
        undo: What ends the failure.
    """

    namespace: Namespace
    documents: list[Object]
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
        """Have a plugin in order."""
        await self.deploy()
        await self.plugin.until_ready()
        await self.cluster.until_counted(RESOURCE, capacity=2, allocatable=2)

    async def use(self, name: str = "user") -> None:
        """Have a pod that asks for a device."""
        main = {"name": "main", "image": BUSYBOX, "command": ["stay"], "resources": {"limits": {RESOURCE: 1}}}
        spec = {"terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "containers": [main]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        await self.cluster.apply(pod, namespace=self.namespace.name)

    async def shell(self, script: str) -> str:
        """Run a script in the plugin's container, also without a kubelet; its exit code is not looked at."""
        process = await anyio.to_thread.run_sync(_process_of, (await self.plugin.pod())["metadata"]["uid"])
        environment = await anyio.Path(f"/proc/{process}/environ").read_text()
        where = ("nsenter", f"--target={process}", "--all", "env", "-i", *environment.strip("\0").split("\0"))
        done = await anyio.run_process(["timeout", "20", *where, "sh", "-c", f"{script}; true"], check=False)
        return done.stdout.decode(errors="replace")

    async def doctor(self, *, on_node: bool) -> list[Object]:
        """Return the bad answers of ``kdp doctor``, in the container or on the node."""
        if on_node:
            said = await self.cluster.run("sh", "-c", f"{sys.executable} -m kdp doctor --format json; true")
        else:
            said = await self.plugin.exec("sh", "-c", "kdp doctor --format json; true")
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


@attrs.frozen
class Failure:
    """A failure, and where its cause is named.

    Attributes:
        title: Its row in the table.
        provoke: Deploys the plugin and has it.
        question: The doctor's question that tells the cause.
        says: A pattern that is in its answer.
        on_node: The doctor is asked on the node, because the kubelet cannot run a command in a pod.
    """

    title: str
    provoke: Callable[[Node], Awaitable[None]]
    question: str
    says: str
    on_node: bool = False


FAILURES: Final = (
    Failure("the kubelet is frozen", kubelet_frozen, "kubelet-answers", "is stopped", on_node=True),
    Failure("the kubelet does not run", kubelet_gone, "kubelet-socket", "nobody listens", on_node=True),
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
)


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


async def tell(node: Node, failure: Failure, began: float) -> Told:
    """Ask the doctor until it names the cause, and then the other sources.

    Raises:
        AssertionError: It does not name it in time.
    """
    bad: list[Object] = []
    while time.monotonic() < began + SECONDS:
        asked = time.monotonic()
        bad = await node.doctor(on_node=failure.on_node)
        now = time.monotonic()
        for place, each in enumerate(bad):
            if each["id"] == failure.question and re.search(failure.says, each["seen"]):
                named = Named(answer=each["seen"], place=place + 1, command=now - asked, after=now - began)
                return Told(doctor=named, sources=await _sources(node))
        await anyio.sleep(0.2)
    pytest.fail(f"within {SECONDS:g} s the doctor did not name it: {json.dumps(bad, indent=1)}")


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
    found = Node(namespace, impatient(rendered(namespace, "night:Night", *options)))
    found.wrong("nothing")
    await namespace.cluster.load(generic_image)
    try:
        yield found
    finally:
        for undo in found.undo:
            await undo()
        for kind, resource in CLUSTERS_OWN.items():
            for name in await namespace.cluster.names(resource):
                if kind != "DeviceClass" and name.startswith("kdp-night"):
                    await namespace.cluster.delete(resource, name)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.title)
async def test_one_command_tells_the_cause(node: Node, failure: Failure, figure: Figure) -> None:
    await failure.provoke(node)
    told = await tell(node, failure, time.monotonic())
    figure(f"night: {failure.title}", told.doctor.after, "s until the doctor names it")
    if night_page.leave(FAILURES.index(failure), failure.title, told):
        return

    expected = {source: said for source, said in night_page.outcomes(failure.title).items() if said}

    async def speak() -> bool:
        return expected.items() <= night_page.outcomes_of(await _sources(node)).items()

    await node.cluster.until(speak, f"these sources speak, as in {night_page.PAGE.name}: {expected}")


def test_the_page_has_each_failure() -> None:
    rows = re.findall(r"^\| (?!failure|---)(.+?) \|", night_page.PAGE.read_text(), re.MULTILINE)
    assert rows == [each.title for each in FAILURES]
