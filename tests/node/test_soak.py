"""Many allocations and releases, with restarts of the kubelet and of the plugin in between.

Each allocation leaves a number of its own in its state; each number must be released once, and no device while a pod
holds it. ``KDP_SOAK=10000`` lets as many be made; without it a few hundred are.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from typing_extensions import override

import kdp
from kdp.plugin.manager import PluginManager
from kdp.plugin.usage import Pace
from kdp.testing import AdmittedPod, Pod

from .backend import RESOURCE, Figure, Widgets, eventually, running
from .nodekit import DeviceManager

ALLOCATIONS = int(os.environ.get("KDP_SOAK", "300"))
DEVICES = 64
RESTART_EVERY = max(100, ALLOCATIONS // 40)
"""Allocations between two restarts, of the kubelet and of the plugin in turn."""

PACE = Pace(gap=0.3, look=0.2, settling=2.0, between=0.02, after_connect=0.2, period=5.0)


class Numbered(Widgets):
    """Counts what is allocated and released, and knows from the test what is held."""

    def __init__(self, *ids: str) -> None:
        super().__init__(*ids)
        self.allocated = 0
        self.released_numbers: Counter[int] = Counter()
        self.held: set[str] = set()
        self.wrong: list[str] = []

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        self.allocated += 1
        devices.state["number"] = self.allocated
        return kdp.ContainerEdits(env={"WIDGETS": ",".join(devices.ids)})

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self.released_numbers[devices.state["number"]] += 1
        if held := self.held & set(devices.ids):
            self.wrong.append(f"{devices.state} was released while {held} were held")


async def test_each_release_is_told_once_and_none_of_a_held_device(
    devmgr: DeviceManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    monkeypatch.setattr("kdp.plugin.holdings.FIRST_LOOK", 0.02)
    rng = random.Random(5)  # noqa: S311 - no secret
    backend = Numbered(*(f"w{n}" for n in range(DEVICES)))
    pods: list[AdmittedPod] = []
    restarts = {"kubelet": 0, "plugin": 0}
    began = time.monotonic()

    async with AsyncExitStack() as life:

        async def plugin() -> PluginManager:
            manager = await life.enter_async_context(running(devmgr.paths, backend, pace=PACE, state_dir=tmp_path))
            await devmgr.until(allocatable={RESOURCE: DEVICES})
            return manager

        manager = await plugin()

        def all_seen() -> bool:
            holders = manager.status().resources[RESOURCE].holders or {}
            return backend.held <= holders.keys()

        while backend.allocated < ALLOCATIONS:
            before = backend.allocated
            while (free := DEVICES - len(backend.held)) and rng.random() < 0.97:
                admitted = await devmgr.admit(Pod.asking({RESOURCE: rng.choice([1, 1, 1, min(2, free)])}))
                backend.held.update(admitted.devices(RESOURCE))
                pods.append(admitted)
            await eventually(all_seen, seconds=60.0)
            if before // RESTART_EVERY != backend.allocated // RESTART_EVERY:
                if sum(restarts.values()) % 2:
                    restarts["plugin"] += 1
                    await life.aclose()
                    await devmgr.until(allocatable={RESOURCE: 0})
                    manager = await plugin()
                else:
                    restarts["kubelet"] += 1
                    await devmgr.restart()
                    await devmgr.until(allocatable={RESOURCE: DEVICES})
                    await devmgr.readmit()
            rng.shuffle(pods)
            for _ in range(rng.randint(1, len(pods))):
                pod = pods.pop()
                await devmgr.delete(pod.pod)
                backend.held.difference_update(pod.devices(RESOURCE))
            if rng.random() < 0.3:
                await anyio.sleep(0.5)
            assert not backend.wrong
        for pod in pods:
            await devmgr.delete(pod.pod)
        backend.held.clear()
        await eventually(lambda: len(backend.released_numbers) == backend.allocated, seconds=60.0)
        await anyio.sleep(1.0)
    assert not backend.wrong
    assert backend.released_numbers == Counter(range(1, backend.allocated + 1))
    assert os.listdir(tmp_path) == []
    release = devmgr.minor.release
    figure(f"{release}: allocations, each released once", backend.allocated, "")
    figure(f"{release}: restarts of the kubelet", restarts["kubelet"], "")
    figure(f"{release}: restarts of the plugin", restarts["plugin"], "")
    figure(f"{release}: all that took", time.monotonic() - began, "s")
