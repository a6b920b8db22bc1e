"""A DRA driver is killed at each step of Prepare in a real cluster: the pod still runs, and leaves nothing behind."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest

from .backend import Figure
from .conftest import Namespace
from .deploy import DEVICES, Nodes, device_class
from .test_dra import CLAIMS, DRIVER, Driver, Object, claim, pod

ROOT = Path(__file__).resolve().parents[2]


@attrs.define
class Mortal(Driver):
    """The driver, a process of the node; each life of it has its own end."""

    async def live(self, *, killed_at: int = -1) -> None:
        """Start it."""
        self.started += 1
        command = (sys.executable, "-m", "tests.node.dra_killed", DEVICES, self.hardware, str(killed_at))
        await self.cluster.spawn(self.process, "env", f"PYTHONPATH={ROOT}", *command)
        registered = f"{DRIVER}: registered with the kubelet"
        await self.cluster.until(lambda: registered in self.cluster.log(self.process), "the driver is registered")

    @property
    def hardware(self) -> Path:
        return self.cluster.work / "run/hardware"

    @property
    def killed(self) -> str:
        """The step at which the newest process was killed; "": at none."""
        lines = self.cluster.log(self.process).splitlines()
        return next((line.removeprefix("killed ") for line in lines if line.startswith("killed ")), "")

    async def runs(self, name: str) -> bool:
        found = await self.cluster.get("v1/pods", name, namespace=self.namespace)
        return found is not None and found["status"].get("phase") == "Running"

    def held(self) -> list[str]:
        """Return which claims the kubelet remembers."""
        file = self.cluster.work / "lib/kubelet/dra_manager_state"
        data = json.loads(json.loads(file.read_text())["Data"])
        return [each["ClaimName"] for each in data["ClaimInfoStateList"] or () if each["Namespace"] == self.namespace]

    def remains(self) -> list[str]:
        """Return what is left of claims: specs, records, hardware that is given, what the kubelet remembers.

        Not the drafts of files: those of a killed process are removed when they are a minute old.
        """
        files = [name for name in self.left() if not name.startswith(".")]
        return [*files, *(path.name for path in self.hardware.iterdir()), *self.held()]


@pytest.fixture
async def driver(namespace: Namespace) -> AsyncIterator[Mortal]:
    cluster = namespace.cluster
    nodes = Nodes(cluster.work / "run/widgets", "w0", "w1")
    found = Mortal(cluster, namespace.name)
    found.hardware.mkdir()
    await cluster.apply(device_class("widget", DRIVER))
    try:
        yield found
    finally:
        await cluster.clear_pods(found.namespace)
        await found.kill()
        nodes.clear()
        found.hardware.rmdir()
        await cluster.clear_published()


def both() -> Object:
    """Return what a claim asks for that has all devices there are, in two requests."""
    exactly = {"deviceClassName": "widget", "count": 1}
    return {"devices": {"requests": [{"name": name, "exactly": exactly} for name in ("a", "b")]}}


async def test_a_driver_killed_at_any_step_of_prepare_leaves_nothing(driver: Mortal, figure: Figure) -> None:
    """Each pod has both devices of the node: if one were held by what was before, the next pod could not start."""
    cluster, steps = driver.cluster, list[str]()
    for number in itertools.count():
        name = f"killed-{number}"
        await driver.live(killed_at=number)
        await driver.until_published(2)
        await cluster.apply(claim(name, both()), pod(name, resourceClaimName=name), namespace=driver.namespace)

        async def is_decided(name: str = name) -> bool:
            return bool(driver.killed) or await driver.runs(name)

        await cluster.until(is_decided, f"the driver is killed, or pod {name} runs", every=0.02)
        step = driver.killed
        await driver.kill()
        await driver.live()
        if step:
            steps.append(step)
            # A pod that has changed is looked at again at once; by itself the kubelet tries once a minute.
            words = ("annotate", f"--namespace={driver.namespace}", f"pod/{name}", f"killed={number}")
            await cluster.kubectl(*words)
        said = await cluster.until_said(name, "end", namespace=driver.namespace)
        assert said.splitlines()[:2] == ["opened /dev/w0", "opened /dev/w1"], step
        assert sorted(path.name for path in driver.hardware.iterdir()) == ["a", "b"], step
        await driver.delete(name)
        await cluster.delete(CLAIMS, name, namespace=driver.namespace)
        await cluster.until(lambda: not driver.remains(), lambda: f"nothing is left, but {driver.remains()} is")
        await driver.kill()
        if not step:
            break
    figure("steps of Prepare at which the driver was killed", float(len(steps)), "")
    assert steps.count("after allocate") == 2
    told = "started, the first request's state and its copy, the spec, complete and its copy"
    assert steps.count("before rename") == 6, told
    assert steps[-1] == "before the answer"
