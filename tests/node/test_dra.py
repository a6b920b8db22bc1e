"""kdp's DRA driver in a real cluster: the real kubelet calls it, and pods start with what it prepared."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from kdp.kubelet.sockets import is_answered

from .backend import RESOURCE, Figure, Widgets, running
from .conftest import Namespace
from .deploy import DEVICES, Nodes, device_class
from .nodekit import Cluster
from .nodekit.cluster import NODE
from .nodekit.image import STAY
from .nodekit.machine import IMAGE

DRIVER = "widget.example.com"
PROGRAM = Path(__file__).with_name("dra_driver.py")
SLICES = "resource.k8s.io/v1/resourceslices"
CLAIMS = "resource.k8s.io/v1/resourceclaims"
OPENS = "for d in /dev/w*; do : <> $d && echo opened $d; done; env | grep -E '^(WIDGET_|GREETING|CARD_)' | sort"
SCRIPT = f"{OPENS}; echo end; {STAY}"
Object = dict[str, Any]


def requests(*selectors: str, greeting: str | None = None, count: int = 1) -> Object:
    """Return what a claim asks for, one request ``w``."""
    exactly = {
        "deviceClassName": "widget",
        "count": count,
        "selectors": [{"cel": {"expression": each}} for each in selectors],
    }
    config: list[Object] = []
    if greeting is not None:
        parameters = {"apiVersion": f"{DRIVER}/v1", "kind": "WidgetMode", "greeting": greeting}
        config = [{"requests": ["w"], "opaque": {"driver": DRIVER, "parameters": parameters}}]
    return {"devices": {"requests": [{"name": "w", "exactly": exactly}], "config": config}}


def claim(name: str, spec: Object) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": spec,
    }


def template(name: str, spec: Object) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": spec},
    }


def pod(name: str, **source: str) -> Object:
    """Return a pod that opens the devices of its claim, given as resourceClaimName or resourceClaimTemplateName."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "resourceClaims": [{"name": "c", **source}],
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["/bin/sh", "-c", SCRIPT],
                    "resources": {"claims": [{"name": "c"}]},
                }
            ],
        },
    }


@attrs.define
class Driver:
    """The driver of a test, a process of the node."""

    cluster: Cluster
    namespace: str
    started: int = 0

    @property
    def process(self) -> str:
        return f"dra-{self.namespace}-{self.started}"

    async def start(self, *arguments: str) -> None:
        self.started += 1
        await self.cluster.spawn(self.process, sys.executable, PROGRAM, DEVICES, *arguments)

    async def kill(self) -> None:
        await self.cluster.kill(self.process)

    def calls(self) -> list[str]:
        """Return what the backend was told, by every process of the test."""
        logs = [self.cluster.log(f"dra-{self.namespace}-{number + 1}") for number in range(self.started)]
        return [line for log in logs for line in log.splitlines() if line.startswith(("allocate ", "released "))]

    def find_socket(self) -> Path | None:
        """Return where the plugin watcher finds the driver; None: nobody answers there."""
        files = self.cluster.paths.plugins_registry_dir.glob(f"{DRIVER}*-reg.sock")
        return next((file for file in files if is_answered(file)), None)

    async def until_published(self, count: int) -> list[Object]:
        """Wait until the API server has so many devices of the driver, and return them."""
        found: list[Object] = []

        async def is_so() -> bool:
            nonlocal found
            slices = [each for each in await self.cluster.list(SLICES) if each["spec"]["driver"] == DRIVER]
            found = [device for each in slices for device in each["spec"].get("devices", ())]
            return len(found) == count

        await self.cluster.until(is_so, f"{count} devices are published", every=0.05)
        return found

    async def run(self, name: str, **source: str) -> str:
        """Make a pod, and return what it said when it runs."""
        await self.cluster.apply(pod(name, **source), namespace=self.namespace)
        said = await self.cluster.until_said(name, "end", namespace=self.namespace)
        await self.cluster.until_pod(name, "Running", namespace=self.namespace)
        return said

    async def delete(self, name: str) -> None:
        await self.cluster.delete("v1/pods", name, namespace=self.namespace)

    async def until_called(self, *calls: str) -> None:
        def told() -> str:
            return f"the backend was told {list(calls)}; it was told {self.calls()}"

        await self.cluster.until(lambda: self.calls() == list(calls), told)

    def left(self) -> list[str]:
        """Return what is left of claims on the node."""
        data = self.cluster.paths.plugins_dir / DRIVER
        folders = (data / "claims", data / "metadata", self.cluster.work / "run/cdi")
        return [
            path.name for folder in folders if folder.exists() for path in folder.iterdir() if "set" not in path.name
        ]


@pytest.fixture
async def driver(namespace: Namespace) -> AsyncIterator[Driver]:
    cluster = namespace.cluster
    nodes = Nodes(cluster.work / "run/widgets", *(f"w{number}" for number in range(4)))
    found = Driver(cluster, namespace.name)
    await cluster.apply(device_class("widget", DRIVER))
    await found.start()
    try:
        yield found
    finally:
        await cluster.clear_pods(found.namespace)
        await found.kill()
        nodes.clear()
        await cluster.clear_published()


async def test_a_pod_runs_with_the_device_of_its_claim(driver: Driver, figure: Figure) -> None:
    started = time.monotonic()
    devices = await driver.until_published(4)
    figure("start of a DRA driver -> slices", time.monotonic() - started, "s")
    assert {device["name"]: device["attributes"]["even"]["bool"] for device in devices} == {
        "w0": True,
        "w1": False,
        "w2": True,
        "w3": False,
    }
    odd = f'!device.attributes["{DRIVER}"].even'
    await driver.cluster.apply(template("odd", requests(odd, greeting="servus")), namespace=driver.namespace)
    started = time.monotonic()
    assert (await driver.run("one", resourceClaimTemplateName="odd")).splitlines() == [
        "opened /dev/w1",
        "GREETING=servus",
        "WIDGET_1=given",
        "end",
    ]
    figure("pod with a claim -> runs", time.monotonic() - started, "s")
    [made] = [each["metadata"]["name"] for each in await driver.cluster.list(CLAIMS, namespace=driver.namespace)]
    assert driver.calls() == [f"allocate {made} w w1"]
    await driver.delete("one")
    await driver.until_called(f"allocate {made} w w1", f"released {made} w w1")
    assert driver.left() == []


async def test_a_pod_reads_which_devices_it_has(driver: Driver) -> None:
    await driver.until_published(4)
    odd = requests(f'!device.attributes["{DRIVER}"].even')
    await driver.cluster.apply(claim("own", odd), template("odd", odd), namespace=driver.namespace)
    for name, source, folder, called in (
        ("one", {"resourceClaimName": "own"}, "resourceclaims/own", None),
        ("other", {"resourceClaimTemplateName": "odd"}, "resourceclaimtemplates/c", "c"),
    ):
        made = pod(name, **source)
        file = f"/var/run/kubernetes.io/dra-device-attributes/{folder}/w/{DRIVER}-metadata.json"
        made["spec"]["containers"][0]["command"] = ["/bin/sh", "-c", f"cat {file}; echo end; {STAY}"]
        await driver.cluster.apply(made, namespace=driver.namespace)
        said = await driver.cluster.until_said(name, "end", namespace=driver.namespace)
        told = json.loads(said.splitlines()[0])
        assert (told["kind"], told["metadata"]["namespace"]) == ("DeviceMetadata", driver.namespace)
        assert told.get("podClaimName") == called
        [device] = told["requests"][0]["devices"]
        assert (device["driver"], device["pool"]) == (DRIVER, NODE)
        assert device["attributes"] == {"even": {"bool": False}}
        await driver.delete(name)
    await driver.cluster.until(lambda: driver.left() == [], "nothing of the claims is left")


async def test_two_pods_share_a_claim(driver: Driver) -> None:
    await driver.until_published(4)
    await driver.cluster.apply(claim("shared", requests(count=2)), namespace=driver.namespace)
    for name in ("one", "other"):
        said = await driver.run(name, resourceClaimName="shared")
        assert said.splitlines()[:3] == ["opened /dev/w0", "opened /dev/w1", "GREETING=hello"]
    assert driver.calls() == ["allocate shared w w0 w1"]
    await driver.delete("one")
    await driver.delete("other")
    await driver.until_called("allocate shared w w0 w1", "released shared w w0 w1")


async def test_a_killed_driver_knows_what_it_gave(driver: Driver) -> None:
    await driver.until_published(4)
    await driver.cluster.apply(claim("kept", requests()), namespace=driver.namespace)
    await driver.run("one", resourceClaimName="kept")
    await driver.kill()
    await driver.start()
    await driver.delete("one")
    await driver.until_called("allocate kept w w0", "released kept w w0")
    assert driver.left() == []


async def test_an_update_overlaps_and_no_pod_notices(driver: Driver) -> None:
    await driver.kill()
    await driver.start("6e1c5bd8-02b4-4b3c-8f7a-7d9f0d2f2c11")
    await driver.until_published(4)
    await driver.cluster.apply(claim("before", requests()), claim("after", requests()), namespace=driver.namespace)
    await driver.run("one", resourceClaimName="before")
    old = driver.process
    await driver.start("7f2d6ce9-02b4-4b3c-8f7a-7d9f0d2f2c12")
    new = driver.process
    registered = f"{DRIVER}: registered with the kubelet"
    await driver.cluster.until(lambda: registered in driver.cluster.log(new), "the new driver is registered")
    await driver.cluster.kill(old)
    assert (await driver.run("other", resourceClaimName="after")).startswith("opened /dev/w1")
    for name in ("one", "other"):
        await driver.delete(name)
    told = ["allocate before w w0", "allocate after w w1", "released before w w0", "released after w w1"]
    await driver.until_called(*told)
    assert driver.left() == []


async def test_after_a_reboot_the_pod_gets_its_device_again(driver: Driver) -> None:
    """No container is left, nor what was on a tmpfs, and the boot's id is another."""
    cluster = driver.cluster
    await driver.until_published(4)
    await cluster.apply(claim("kept", requests()), namespace=driver.namespace)
    stays = pod("one", resourceClaimName="kept")
    stays["spec"]["restartPolicy"] = "Always"
    await cluster.apply(stays, namespace=driver.namespace)
    before = await cluster.until_pod("one", "Running", namespace=driver.namespace)
    await driver.kill()
    await cluster.crash()
    await cluster.kill_containers()
    for spec in (cluster.work / "run/cdi").iterdir():
        spec.unlink()
    await driver.start("", "another-boot")
    await cluster.start()

    def is_another(found: Object) -> bool:
        [now], [was] = (each["status"]["containerStatuses"] for each in (found, before))
        return "running" in now["state"] and now["containerID"] != was["containerID"]

    after = await cluster.until_object("v1/pods", "one", is_another, "runs again", namespace=driver.namespace)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]

    async def has_opened() -> bool:
        said = await cluster.logs("one", namespace=driver.namespace)
        return said.splitlines()[:2] == ["opened /dev/w0", "GREETING=hello"]

    await cluster.until(has_opened, "it has opened its device again", every=0.05)
    assert driver.calls() == ["allocate kept w w0", "allocate kept w w0"], "of another boot, so all of it again"
    await driver.until_published(4)
    await driver.delete("one")
    await driver.until_called("allocate kept w w0", "allocate kept w w0", "released kept w w0")
    assert driver.left() == []


async def test_a_kubelet_that_restarts_finds_the_driver_and_its_slices_come_back(
    driver: Driver, figure: Figure
) -> None:
    await driver.until_published(4)
    await driver.cluster.apply(claim("before", requests()), claim("after", requests()), namespace=driver.namespace)
    await driver.run("one", resourceClaimName="before")
    await driver.cluster.restart()
    started = time.monotonic()
    await driver.until_published(4)
    figure("kubelet restart -> slices", time.monotonic() - started, "s")
    assert (await driver.run("other", resourceClaimName="after")).startswith("opened /dev/w1")
    assert driver.calls() == ["allocate before w w0", "allocate after w w1"], "what was prepared was not touched"
    await driver.delete("one")
    await driver.delete("other")
    await driver.until_called(*driver.calls()[:2], "released before w w0", "released after w w1")


async def test_a_driver_does_not_inherit_the_pauses_after_calls_of_a_dead_one(driver: Driver, figure: Figure) -> None:
    """A kubelet that starts calls a killed driver's socket by its path, with growing pauses of up to two minutes."""
    cluster = driver.cluster
    await driver.until_published(4)
    dead = driver.find_socket()
    assert dead is not None
    await driver.kill()
    await cluster.crash()
    told = len(cluster.log("kubelet"))
    await cluster.start()
    failed = f'{dead.name}" failed. No retries permitted until'
    await cluster.until(lambda: failed in cluster.log("kubelet")[told:], "the kubelet has called the dead one in vain")
    await driver.start()
    await cluster.until(driver.find_socket, "the driver listens", every=0.02)
    started = time.monotonic()
    assert driver.find_socket() != dead
    assert not dead.exists()
    registered = f"{DRIVER}: registered with the kubelet"
    await cluster.until(lambda: registered in cluster.log(driver.process), "the driver is registered", every=0.02)
    figure("a dead driver's successor listens -> registered", time.monotonic() - started, "s")
    await driver.until_published(4)

    def is_done() -> bool:
        log = cluster.log("kubelet")[told:]
        begun = sum("RegisterPlugin started" in line and f'{dead.name}"' in line for line in log.splitlines())
        return begun == log.count(failed)

    # A call of it that has begun would reach the driver of the next test, and the kubelet would take that for another
    # one.
    await cluster.until(is_done, "the kubelet has ended its calls of the dead one")


async def test_health_is_in_the_pods_status_and_keeps_new_claims_away(driver: Driver) -> None:
    await driver.until_published(4)
    await driver.cluster.apply(claim("first", requests()), namespace=driver.namespace)
    await driver.run("one", resourceClaimName="first")
    (driver.cluster.work / "run/widgets/sick").write_text("w0")

    def is_told(found: Object) -> bool:
        [container] = found["status"]["containerStatuses"]
        told = [each for status in container.get("allocatedResourcesStatus", ()) for each in status["resources"]]
        return any(each.get("health") == "Unhealthy" and each.get("message") == "it smokes" for each in told)

    await driver.cluster.until_object(
        "v1/pods", "one", is_told, "tells that its device is sick", namespace=driver.namespace
    )

    async def is_tainted() -> bool:
        taints = {device["name"]: device.get("taints", []) for device in await driver.until_published(4)}
        return [taint["effect"] for taint in taints["w0"]] == ["NoSchedule"] and not taints["w1"]

    await driver.cluster.until(is_tainted, "the sick device has a taint", every=0.05)
    await driver.delete("one")
    await driver.cluster.apply(claim("second", requests()), namespace=driver.namespace)
    assert (await driver.run("other", resourceClaimName="second")).startswith("opened /dev/w1")


async def test_what_is_wrong_with_a_claim_is_told_to_the_pods_author(driver: Driver) -> None:
    await driver.until_published(4)
    spec = requests(greeting="x")
    spec["devices"]["config"][0]["opaque"]["parameters"]["greeting"] = 5
    await driver.cluster.apply(claim("wrong", spec), pod("one", resourceClaimName="wrong"), namespace=driver.namespace)
    wanted = "config[0].opaque.parameters.greeting (FromClaim): must be a text, this is 5"

    async def is_told() -> bool:
        events = await driver.cluster.list("v1/events", namespace=driver.namespace)
        return any(each["reason"] == "FailedPrepareDynamicResources" and wanted in each["message"] for each in events)

    await driver.cluster.until(is_told, "the pod has an event that says so", every=0.1)
    assert driver.calls() == []


async def test_slices_wait_for_the_end_of_a_device_plugin(driver: Driver, figure: Figure) -> None:
    cluster = driver.cluster
    await driver.until_published(4)
    await driver.kill()
    await cluster.api("DELETE", f"/apis/{SLICES}")
    async with running(cluster.paths, Widgets("p0", "p1")):

        def offers(amount: str) -> Callable[[Object], bool]:
            return lambda node: node["status"]["allocatable"].get(RESOURCE) == amount

        await cluster.until_object("v1/nodes", NODE, offers("2"), "offers two devices by a device plugin")
        await driver.start()
        sentence = f"node {NODE} still offers 2 of {RESOURCE} by a device plugin, and a node must offer devices in"
        await cluster.until(lambda: sentence in cluster.log(driver.process), "the driver says why it waits")
        assert f"{DRIVER}: registered with the kubelet" in cluster.log(driver.process)

        async def is_an_event() -> bool:
            events = await cluster.list("v1/events", namespace="default")
            return [each["involvedObject"]["name"] for each in events if sentence in each.get("message", "")] == [NODE]

        await cluster.until(is_an_event, "the node has an Event that says so, once", every=0.5)
        assert await cluster.list(SLICES) == []
    started = time.monotonic()
    await cluster.until_object("v1/nodes", NODE, offers("0"), "offers none any more")
    figure("end of a device plugin -> node shows 0", time.monotonic() - started, "s")
    await driver.until_published(4)
    figure("end of a device plugin -> slices", time.monotonic() - started, "s")
    await cluster.apply(claim("free", requests()), namespace=driver.namespace)
    assert (await driver.run("one", resourceClaimName="free")).startswith("opened /dev/w0")


async def test_the_claim_says_that_its_devices_are_ready(driver: Driver) -> None:
    await driver.until_published(4)
    await driver.cluster.apply(claim("told", requests(count=2)), namespace=driver.namespace)
    await driver.run("one", resourceClaimName="told")

    def is_told(found: Object) -> bool:
        entries = found["status"].get("devices") or []
        ready = {each["device"]: [(c["type"], c["status"]) for c in each["conditions"]] for each in entries}
        return ready == {"w0": [("Ready", "True")], "w1": [("Ready", "True")]}

    await driver.cluster.until_object(
        CLAIMS, "told", is_told, "says that its devices are ready", namespace=driver.namespace
    )
