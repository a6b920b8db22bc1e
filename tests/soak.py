"""Many allocations and releases on a kubelet, with restarts of the kubelet and of the plugin in between.

Each allocation leaves a number of its own in its state; each number must be released once, and no device while a pod
holds it. Played on the simulated kubelet and on the kubelet's own device managers.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import anyio
from typing_extensions import override

import kdp
from kdp.deviceplugin.manager import PluginManager
from kdp.deviceplugin.options import ManagerOptions, Pace
from kdp.kubelet import KubeletPaths
from kdp.testing import AdmissionError, AdmittedPod, Pod
from kdp_testkit.patience import PATIENCE

__all__ = ["ALLOCATIONS", "Kubelet", "soak"]

RESOURCE = "example.com/widget"
ALLOCATIONS = int(os.environ.get("KDP_SOAK", "300"))
DEVICES = 64
PACE = Pace(gap=0.3, look=0.2, settling=2.0, between=0.02, after_connect=0.2, period=5.0)


class Kubelet(Protocol):
    """What both kubelets do."""

    @property
    def paths(self) -> KubeletPaths: ...
    async def until(self, *, allocatable: Mapping[str, int]) -> object: ...
    async def admit(self, pod: Pod, /) -> AdmittedPod: ...
    async def delete(self, pod: Pod, /) -> None: ...
    async def restart(self) -> object: ...
    async def readmit(self) -> Mapping[str, AdmittedPod | AdmissionError] | None: ...


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


async def soak(
    kubelet: Kubelet, state_dir: Path, figure: Callable[[str, float, str], None], *, name: str, allocations: int
) -> None:
    """Allocate and release at random so many times."""
    restart_every = max(100, allocations // 40)
    rng = random.Random(5)  # noqa: S311 - no secret
    backend = Numbered()
    pods: list[AdmittedPod] = []
    restarts = {"kubelet": 0, "plugin": 0}
    began = time.monotonic()

    async with AsyncExitStack() as life:

        async def plugin() -> PluginManager:
            made = PluginManager([backend], ManagerOptions(paths=kubelet.paths, pace=PACE, state_dir=state_dir))
            manager = await life.enter_async_context(made)
            await kubelet.until(allocatable={RESOURCE: DEVICES})
            return manager

        manager = await plugin()

        def all_seen() -> bool:
            """Whether every device was in a list that was asked for after its last Allocate: no other is ever released.

            Nobody outside can tell: a list that was asked for before may name the same pod.
            """
            tracks = manager._tracker._allocations._tracks  # pyright: ignore[reportPrivateUsage]
            return all(tracks[RESOURCE, device_id].is_seen for device_id in backend.held)

        while backend.allocated < allocations:
            before = backend.allocated
            while (free := DEVICES - len(backend.held)) and rng.random() < 0.97:
                admitted = await kubelet.admit(Pod.asking({RESOURCE: rng.choice([1, 1, 1, min(2, free)])}))
                backend.held.update(admitted.devices(RESOURCE))
                pods.append(admitted)
            await _eventually(all_seen, lambda: f"not all of {sorted(backend.held)} were seen to be held")
            if before // restart_every != backend.allocated // restart_every:
                if sum(restarts.values()) % 2:
                    restarts["plugin"] += 1
                    await life.aclose()
                    await kubelet.until(allocatable={RESOURCE: 0})
                    manager = await plugin()
                else:
                    restarts["kubelet"] += 1
                    await kubelet.restart()
                    await kubelet.until(allocatable={RESOURCE: DEVICES})
                    await kubelet.readmit()
            rng.shuffle(pods)
            for _ in range(rng.randint(1, len(pods))):
                pod = pods.pop()
                await kubelet.delete(pod.pod)
                backend.held.difference_update(pod.devices(RESOURCE))
            if rng.random() < 0.3:
                await anyio.sleep(0.5)
            assert not backend.wrong
        for pod in pods:
            await kubelet.delete(pod.pod)
        backend.held.clear()
        everything = set(range(1, backend.allocated + 1))
        await _eventually(
            lambda: backend.released_numbers.keys() == everything,
            lambda: (
                f"allocations {sorted(everything - backend.released_numbers.keys())} of {backend.allocated} were not "
                f"released; saved are {[(state_dir / name).read_text() for name in os.listdir(state_dir)]}"
            ),
        )
        await anyio.sleep(1.0)  # whatever is told twice is told by now
    assert not backend.wrong
    assert backend.released_numbers == Counter(range(1, backend.allocated + 1))
    assert os.listdir(state_dir) == []
    figure(f"{name}: allocations, each released once", backend.allocated, "")
    figure(f"{name}: restarts of the kubelet", restarts["kubelet"], "")
    figure(f"{name}: restarts of the plugin", restarts["plugin"], "")
    figure(f"{name}: all that took", time.monotonic() - began, "s")
