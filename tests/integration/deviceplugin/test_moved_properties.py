"""Hardware that is renumbered at any moment, among admissions, restarts, and releases, in orders drawn by lot."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kdp.deviceplugin.cdi import CdiOptions
from kdp.testing import AdmissionError, Pod, SimulatedKubelet, SysfsTree
from kdp_testkit import AdmittedPod
from kdp_testkit.patience import PATIENCE

from .helpers import RESOURCE, Figure, connected
from .test_moved import Adapters
from .test_release import QUICK

FEW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
MANY = settings(FEW, max_examples=100, derandomize=False)

STEPS = st.lists(
    st.sampled_from(["move", "move", "admit", "start", "end", "restart the plugin"]), min_size=4, max_size=14
)
"""``move`` swaps the numbers, ``start`` starts each container again, ``end`` ends the oldest pod."""


@attrs.define
class Node:
    """A node with two adapters, and the pods that hold them."""

    kubelet: SimulatedKubelet
    folder: Path
    mode: str
    pods: list[AdmittedPod] = attrs.field(factory=list[AdmittedPod])
    is_swapped: bool = False
    moved_at: float = 0.0
    window: float = 0.0
    backend: Adapters = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.backend = Adapters(SysfsTree(self.folder / "node"), numbers=self.mode == "numbers")

    @asynccontextmanager
    async def plugin(self) -> AsyncIterator[None]:
        more: dict[str, Any] = {"state_dir": self.folder / "state", "host": self.backend.host}
        if self.mode == "cdi":
            more["cdi"] = CdiOptions(directory=self.folder / "cdi", only=True)
        async with connected(self.kubelet, self.backend, pace=QUICK, **more):
            yield

    def move(self) -> None:
        self.is_swapped = not self.is_swapped
        self.backend.plug(A=int(self.is_swapped), B=int(not self.is_swapped))
        self.moved_at = time.monotonic()

    async def wrong(self, pod: AdmittedPod) -> bool:
        """Start a pod's container again; return whether it got the other device than the pod holds."""
        [held] = pod.devices(RESOURCE)
        reply = (await self.kubelet.start_container(pod.pod)).reply
        if self.mode == "cdi":
            [file] = (self.folder / "cdi").iterdir()
            found = {each["name"]: each for each in json.loads(file.read_text())["devices"]}
            [node] = found[reply.cdi_devices[0].partition("=")[2]]["containerEdits"]["deviceNodes"]
            path = node.get("hostPath", node["path"])
        else:
            path = reply.devices[0].host_path
        return self.backend.host.resolve(path) != self.backend.host.resolve(f"/dev/by-id/{held}")

    @property
    def _is_offered(self) -> bool:
        """Whether any device is Healthy: the one that the pod holds is another's, and the other is used by it."""
        return any(device.health == "Healthy" for device in self.kubelet.devices(RESOURCE).values())

    async def start(self) -> None:
        """Start all containers again. A moment after one is wrong, no device is offered; links are never wrong."""
        for pod in self.pods:
            if not await self.wrong(pod):
                continue
            assert self.mode != "links"
            began = self.moved_at

            with anyio.fail_after(PATIENCE):
                while self._is_offered and await self.wrong(pod):  # noqa: ASYNC110 - the kubelet tells nobody
                    await anyio.sleep(0.005)
            self.window = max(self.window, time.monotonic() - began)


async def play(mode: str, steps: list[str]) -> float:
    """Play steps; return for how many seconds at most a device was listed Healthy that a container got wrongly."""
    with TemporaryDirectory() as folder:
        async with SimulatedKubelet() as kubelet:
            node = Node(kubelet, Path(folder), mode)
            for steps_of_a_life in _lives(steps):
                async with node.plugin():
                    for step in steps_of_a_life:
                        await _take(node, step)
                    await node.start()
        return node.window


def _lives(steps: list[str]) -> list[list[str]]:
    """Divide steps at the plugin's restarts; what moves before one moves while no plugin runs as well."""
    lives: list[list[str]] = [[]]
    for step in steps:
        if step == "restart the plugin":
            lives.append([])
        else:
            lives[-1].append(step)
    return lives


async def _take(node: Node, step: str) -> None:
    kubelet = node.kubelet
    match step:
        case "move":
            node.move()
        case "admit" if len(node.pods) < 2:
            with suppress(AdmissionError):  # the other device is not healthy
                node.pods.append(await kubelet.admit(Pod.asking({RESOURCE: 1})))
        case "start":
            await node.start()
        case "end" if node.pods:
            await kubelet.delete(node.pods.pop(0).pod)
        case _:
            pass


@pytest.mark.parametrize("mode", ["links", "numbers", "cdi"])
@pytest.mark.parametrize("how", [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)])
def test_no_container_starts_with_another_device(mode: str, how: settings, figure: Figure) -> None:
    windows: list[float] = []

    @how
    @given(STEPS)
    def played(steps: list[str]) -> None:
        windows.append(anyio.run(play, mode, steps))

    played()
    what = f"{mode}, {len(windows)} orders: a moved device was offered Healthy and given wrongly for at most"
    figure(what, 1e3 * max(windows), "ms")
