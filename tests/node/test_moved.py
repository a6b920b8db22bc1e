"""Hardware that comes back under another number while pods hold it: what their containers get when they start again.

On a real kubelet with containerd; the plugin is killed between the change and the containers' start.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from .conftest import Namespace
from .deploy import device_class, until_serving
from .nodekit import Cluster
from .nodekit.image import STAY
from .nodekit.machine import IMAGE
from .test_dra import template

RESOURCE = "example.com/adapter"
DRIVER = "adapter.example.com"
PROGRAM = Path(__file__).with_name("adapters.py")
FOLDER = "/run/adapters"
MAJOR = 240
"""For local and experimental use (Linux: Documentation/admin-guide/devices.txt); no driver need be there."""

SCRIPT = f"ls -l /dev/w?; echo end; {STAY}"


@attrs.define
class Adapters:
    """Two adapters ``wA`` and ``wB`` with the numbers 0 and 1, and what serves them."""

    cluster: Cluster
    namespace: str
    names: str = "links"
    mode: str = "plugin"
    started: int = 0

    @property
    def folder(self) -> Path:
        return self.cluster.work / FOLDER.removeprefix("/")

    def plug(self, **numbers: int) -> None:
        """Have the adapters under these numbers."""
        self.folder.mkdir(exist_ok=True)
        for name, number in numbers.items():
            node, draft = self.folder / f"n{number}", self.folder / "draft"
            if not node.exists():
                os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(MAJOR, number))
            draft.symlink_to(f"n{number}")
            draft.rename(self.folder / name)

    async def serve(self, names: str, mode: str) -> None:
        self.names, self.mode = names, mode
        await self.start()
        await until_serving(self.cluster, self._process, is_dra=mode == "dra")

    async def start(self) -> None:
        self.started += 1
        await self.cluster.spawn(self._process, sys.executable, PROGRAM, FOLDER, self.names, self.mode)

    async def kill(self) -> None:
        await self.cluster.kill(self._process)

    @property
    def _process(self) -> str:
        return f"adapters-{self.namespace}-{self.started}"

    async def until_offered(self, healthy: int) -> None:
        if self.mode != "dra":
            await self.cluster.until_counted(RESOURCE, capacity=2, allocatable=healthy)
            return

        async def is_published() -> bool:
            slices = await self.cluster.list("resource.k8s.io/v1/resourceslices")
            found = [d for s in slices if s["spec"]["driver"] == DRIVER for d in s["spec"].get("devices") or ()]
            return len(found) == 2 and sum(not d.get("taints") for d in found) == healthy

        await self.cluster.until(is_published, f"{healthy} of two devices are published as healthy")

    async def hold(self, pod: str) -> str:
        """Start a pod with one adapter; return which."""
        await self.cluster.apply(self._pod(pod), namespace=self.namespace)
        return await self.seen(pod, 1)

    async def seen(self, pod: str, times: int) -> str:
        """Wait until a pod's container has started so many times; return ``NAME=NUMBER`` as the last one sees it."""

        async def said() -> list[str]:
            text = await self.cluster.until_said(pod, "end", namespace=self.namespace)
            return [line for line in text.splitlines() if line.startswith("c")]

        async def has_started() -> bool:
            return len(await said()) >= times

        await self.cluster.until(has_started, f"pod {pod} has started {times} times")
        # crw-rw-rw- 1 root root 240, 0 Jan 1 00:00 /dev/wA
        fields = (await said())[-1].replace(",", " ").split()
        return f"{fields[-1].removeprefix('/dev/')}={fields[5]}"

    async def start_again(self, pod: str) -> str:
        """Kill a pod's container; return what the next one sees."""
        found = await self.cluster.until_pod(pod, "Running", namespace=self.namespace)
        before = found["status"]["containerStatuses"][0]["restartCount"] + 1
        await self.cluster.kill_container(found)
        return await self.seen(pod, before + 1)

    @property
    def specs(self) -> list[Path]:
        return [*(self.cluster.work / "run/cdi").glob("kdp_*")]

    def by_cdi(self) -> dict[str, str]:
        """Return which node each path in a container is, as a runtime reads it now."""
        specs = [json.loads(path.read_text()) for path in self.specs]
        edits = [device["containerEdits"] for spec in specs for device in spec["devices"]]
        return {node["path"]: node["hostPath"] for each in edits for node in each["deviceNodes"]}

    def _pod(self, name: str) -> dict[str, Any]:
        container: dict[str, Any] = {
            "name": "main",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", SCRIPT],
        }
        spec: dict[str, Any] = {
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [container],
        }
        if self.mode == "dra":
            container["resources"] = {"claims": [{"name": "c"}]}
            spec["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": "one"}]
        else:
            container["resources"] = {"limits": {RESOURCE: "1"}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
async def adapters(namespace: Namespace) -> AsyncIterator[Adapters]:
    cluster = namespace.cluster
    found = Adapters(cluster, namespace.name)
    found.plug(wA=0, wB=1)
    request = {"name": "r", "exactly": {"deviceClassName": "adapter"}}
    await cluster.apply(
        device_class("adapter", DRIVER),
        template("one", {"devices": {"requests": [request]}}),
        namespace=namespace.name,
    )
    try:
        yield found
    finally:
        if found.mode == "dra":
            await found.kill()
            await found.start()  # a pod ends only when its claim is unprepared
        await cluster.clear_pods(found.namespace)
        await found.kill()
        for file in found.specs:  # a plugin that stops leaves it
            file.unlink()
        shutil.rmtree(found.folder / "state", ignore_errors=True)  # the next test's numbers are others
        await cluster.clear_published()


@pytest.mark.parametrize(
    ("names", "mode"),
    [("links", "plugin"), ("links", "cdi"), ("links", "dra"), ("numbers", "cdi"), ("numbers", "dra")],
)
async def test_a_container_that_starts_again_gets_its_own_device(adapters: Adapters, names: str, mode: str) -> None:
    await adapters.serve(names, mode)
    await adapters.until_offered(2)
    held = {pod: await adapters.hold(pod) for pod in ("one", "other")}
    assert set(held.values()) == {"wA=0", "wB=1"}
    adapters.plug(wA=1, wB=0)
    if mode != "plugin":
        swapped = {"/dev/wA": f"{FOLDER}/n1", "/dev/wB": f"{FOLDER}/n0"}
        await adapters.cluster.until(lambda: adapters.by_cdi() == swapped, "the CDI files are written again")
    await adapters.kill()
    for pod, device in held.items():
        assert await adapters.start_again(pod) == {"wA=0": "wA=1", "wB=1": "wB=0"}[device]
    await adapters.start()
    await adapters.until_offered(2)


async def test_a_bare_number_that_moved_is_not_offered_until_its_pod_is_gone(adapters: Adapters) -> None:
    """Nothing can change the reply that the kubelet keeps; kdp says so, also after it was killed."""
    await adapters.serve("numbers", "plugin")
    await adapters.until_offered(2)
    held = {await adapters.hold(pod): pod for pod in ("one", "other")}
    adapters.plug(wA=1, wB=0)
    await adapters.until_offered(0)
    await adapters.kill()
    assert await adapters.start_again(held["wA=0"]) == "wA=0"  # it is wB by now
    await adapters.start()
    said = f"is {FOLDER}/n1 now; the pod was given {FOLDER}/n0; delete the pod"
    await adapters.cluster.until(
        lambda: said in adapters.cluster.log(f"adapters-{adapters.namespace}-2"), "the new process says why"
    )
    await adapters.until_offered(0)
    await adapters.cluster.clear_pods(adapters.namespace)
    await adapters.until_offered(2)
    assert await adapters.hold("third") in ("wA=1", "wB=0")
