"""What a pod finds on a device that another one has written to, on a real kubelet with containerd."""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from .backend import Figure
from .conftest import Namespace
from .deploy import device_class, until_serving
from .nodekit import Cluster
from .nodekit.image import STAY
from .nodekit.machine import IMAGE
from .test_dra import template

RESOURCE = "example.com/scratch"
DRIVER = "scratch.example.com"
PROGRAM = Path(__file__).with_name("scratches.py")
FOLDER = "/run/scratches"
SEED = int(os.environ.get("KDP_TEST_SEED", "0")) or random.SystemRandom().randrange(1_000_000)

LOOKS = "for d in /scratch/*; do echo found $(ls $d); echo $HOSTNAME > $d/secret; done; echo end; "


@attrs.define
class Scratches:
    """A plugin or a driver whose devices are scratch directories, and pods that use them."""

    cluster: Cluster
    namespace: str
    started: int = 0
    mode: str = "plugin"
    arguments: tuple[object, ...] = ()

    @property
    def folder(self) -> Path:
        return self.cluster.work / FOLDER.removeprefix("/")

    async def serve(self, count: int, seconds: float, mode: str = "plugin") -> None:
        self.mode, self.arguments = mode, (count, seconds, mode)
        await self.start()
        await until_serving(self.cluster, self._process, is_dra=mode == "dra")
        if mode != "dra":
            offered = 2 * count if mode == "shared" else count
            await self.cluster.until_counted(RESOURCE, capacity=offered, allocatable=offered)

    async def start(self) -> None:
        self.started += 1
        await self.cluster.spawn(self._process, sys.executable, PROGRAM, FOLDER, *map(str, self.arguments))

    async def kill(self) -> None:
        await self.cluster.kill(self._process)

    @property
    def _process(self) -> str:
        return f"scratches-{self.namespace}-{self.started}"

    async def create(self, pod: str, *, after: str = STAY, init: bool = False) -> None:
        """Apply a pod that tells what it finds, writes its name, and does something after that."""
        container: dict[str, Any] = {
            "name": "main",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", LOOKS + after],
            "resources": {"limits": {RESOURCE: "1"}},
        }
        spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
        }
        if self.mode == "dra":
            container["resources"] = {"claims": [{"name": "c"}]}
            spec["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": "one"}]
        if init:
            spec["initContainers"] = [{**container, "name": "load", "command": ["/bin/sh", "-c", LOOKS]}]
        spec["containers"] = [container]
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}, "spec": spec}
        await self.cluster.apply(made, namespace=self.namespace)

    async def found(self, pod: str, *, within: float = 60.0) -> list[str]:
        """Wait until a pod has looked; return what it found."""
        said = await self.cluster.until_said(pod, "end", namespace=self.namespace, seconds=within)
        return [name for line in said.splitlines() if line.startswith("found") for name in line.split()[1:]]

    async def delete(self, pod: str) -> None:
        await self.cluster.delete("v1/pods", pod, namespace=self.namespace)


@pytest.fixture
async def scratches(namespace: Namespace) -> AsyncIterator[Scratches]:
    cluster = namespace.cluster
    found = Scratches(cluster, namespace.name)
    found.folder.mkdir(exist_ok=True)
    request = {"name": "r", "exactly": {"deviceClassName": "scratch"}}
    await cluster.apply(
        device_class("scratch", DRIVER),
        template("one", {"devices": {"requests": [request]}}),
        namespace=namespace.name,
    )
    try:
        yield found
    finally:
        await cluster.clear_pods(found.namespace)
        await found.kill()
        shutil.rmtree(found.folder)
        # A release that a driver owes when it is killed withholds its device from the next test.
        shutil.rmtree(cluster.paths.plugins_dir / DRIVER, ignore_errors=True)
        await cluster.clear_published()


@pytest.mark.parametrize("seconds", [40.0, pytest.param(180.0, marks=pytest.mark.slow)])
async def test_a_pod_waits_until_the_device_of_the_one_before_is_erased(
    scratches: Scratches, figure: Figure, seconds: float
) -> None:
    """Longer than a start may take: the kubelet tries it again."""
    await scratches.serve(1, seconds)
    await scratches.create("first")
    assert await scratches.found("first") == []
    await scratches.delete("first")
    began = time.monotonic()
    await scratches.create("second")
    assert await scratches.found("second", within=3 * seconds + 60.0) == []
    took = time.monotonic() - began
    figure(f"cluster: a pod's start behind a scrub of {seconds:.0f} s", took, "s")
    assert took > 0.75 * seconds
    events = await scratches.cluster.list("v1/events", namespace=scratches.namespace)
    said = {event["message"] for event in events if event["involvedObject"]["name"] == "second"}
    assert any("device s0 is still being scrubbed, since" in message for message in said), said


async def test_what_an_init_container_loads_is_there_for_its_pod(scratches: Scratches) -> None:
    await scratches.serve(1, 0.0)
    await scratches.create("loaded", init=True)
    await scratches.cluster.until_said("loaded", "found secret", namespace=scratches.namespace)


async def test_a_pod_that_is_deleted_by_force_keeps_others_from_what_it_left(scratches: Scratches) -> None:
    """Its claim is free at once. The scheduler does not give the device away while it is being scrubbed."""
    await scratches.serve(1, 30.0, "dra")
    await scratches.create("first")
    assert await scratches.found("first") == []
    gone = {"gracePeriodSeconds": 0}
    await scratches.cluster.api("DELETE", f"/api/v1/namespaces/{scratches.namespace}/pods/first", gone)
    await scratches.create("second")
    assert await scratches.found("second", within=180.0) == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plugin", "shared", "dra"])
async def test_no_pod_finds_a_secret_whenever_the_plugin_is_killed(
    scratches: Scratches, figure: Figure, mode: str
) -> None:
    rng = random.Random(SEED)  # noqa: S311 - no secret
    print(f"seed {SEED}")
    await scratches.serve(2, 0.5, mode)
    leaks: list[str] = []
    count = 40 if mode == "plugin" else 15
    for number in range(count):
        pod = f"p{number}"
        await scratches.create(pod, after="true")
        if rng.random() < 0.3:
            await anyio.sleep(rng.uniform(0.0, 1.5))
            await scratches.kill()
            await scratches.start()
        if found := await scratches.found(pod, within=180.0):
            leaks.append(f"{pod}: {found}")
        await scratches.delete(pod)
    figure(f"cluster, {mode}: pods that looked for another one's secret", count, "pods")
    assert not leaks
