"""Many allocations and releases on the kubelet's own device managers. ``KDP_SOAK=10000`` lets as many be made.

Each allocation leaves a number of its own in its state; each number must be released once, and no device while a pod
holds it. The kubelet and the plugin restart in between. Chaos judges the same on the simulated kubelet.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from typing_extensions import override

import kdp
from kdp.deviceplugin.manager import PluginManager
from kdp.deviceplugin.options import ManagerOptions, Pace
from kdp.testing import AdmittedPod, Pod
from kdp_testkit.patience import PATIENCE

from .backend import RESOURCE, Figure
from .nodekit import DeviceManager

ALLOCATIONS = int(os.environ.get("KDP_SOAK", "300"))
DEVICES = 64
PACE = Pace(gap=0.3, look=0.2, settled=1.0, settling=2.0, between=0.02, after_connect=0.2, period=5.0)


class Numbered(kdp.DeviceBackend):
    """Counts what is allocated and released, and knows from the test what is held."""

    resource = RESOURCE
    poll_interval = None

    def __init__(self) -> None:
        self.allocated = 0
        self.released_numbers: Counter[int] = Counter()
        self.held: set[str] = set()
        self.wrong: list[str] = []

    @override
    def discover(self) -> Iterable[kdp.Device]:
        return [kdp.Device(id=f"w{n}") for n in range(DEVICES)]

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


async def _eventually(condition: Callable[[], object], otherwise: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {PATIENCE:g} s {otherwise()}")
        await anyio.sleep(0.005)


async def test_each_release_is_told_once_and_none_of_a_held_device(
    devmgr: DeviceManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    monkeypatch.setattr("kdp.deviceplugin.tracking.allocations.FIRST_LOOK", 0.02)
    restart_every = max(100, ALLOCATIONS // 40)
    rng = random.Random(5)  # noqa: S311 - no secret
    backend = Numbered()
    pods: list[AdmittedPod] = []
    restarts = {"kubelet": 0, "plugin": 0}
    began = time.monotonic()

    async with AsyncExitStack() as life:

        async def plugin() -> PluginManager:
            made = PluginManager([backend], ManagerOptions(paths=devmgr.paths, pace=PACE, state_dir=tmp_path))
            manager = await life.enter_async_context(made)
            await devmgr.until(allocatable={RESOURCE: DEVICES})
            return manager

        manager = await plugin()

        def all_seen() -> bool:
            """Whether every device was in a list that was asked for after its last Allocate: no other is ever released.

            Nobody outside can tell: a list that was asked for before may name the same pod.
            """
            tracks = manager._tracker._allocations._tracks  # pyright: ignore[reportPrivateUsage]
            return all(tracks[RESOURCE, device_id].is_seen for device_id in backend.held)

        while backend.allocated < ALLOCATIONS:
            before = backend.allocated
            while (free := DEVICES - len(backend.held)) and rng.random() < 0.97:
                admitted = await devmgr.admit(Pod.asking({RESOURCE: rng.choice([1, 1, 1, min(2, free)])}))
                backend.held.update(admitted.devices(RESOURCE))
                pods.append(admitted)
            await _eventually(all_seen, lambda: f"not all of {sorted(backend.held)} were seen to be held")
            if before // restart_every != backend.allocated // restart_every:
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
        everything = set(range(1, backend.allocated + 1))
        await _eventually(
            lambda: backend.released_numbers.keys() == everything,
            lambda: (
                f"allocations {sorted(everything - backend.released_numbers.keys())} of {backend.allocated} were not "
                f"released; saved are {[(tmp_path / name).read_text() for name in os.listdir(tmp_path)]}"
            ),
        )
        await anyio.sleep(1.0)  # whatever is told twice is told by now
    assert not backend.wrong
    assert backend.released_numbers == Counter(range(1, backend.allocated + 1))
    assert os.listdir(tmp_path) == []
    figure(f"{devmgr.minor.release}: allocations, each released once", backend.allocated, "")
    figure(f"{devmgr.minor.release}: restarts of the kubelet", restarts["kubelet"], "")
    figure(f"{devmgr.minor.release}: restarts of the plugin", restarts["plugin"], "")
    figure(f"{devmgr.minor.release}: all that took", time.monotonic() - began, "s")
