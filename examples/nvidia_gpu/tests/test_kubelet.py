"""The whole way: the fake library, nvidia-ml-py, the backend, kdp, and a kubelet. No test here polls."""

from __future__ import annotations

import time

import anyio
import attrs

from kdp.testing import Pod, SimulatedKubelet
from kdp_nvidia_gpu.fake import MigState, NvmlState

from .support import DIVIDED, MIG, Figure, Make, serving

GPU = NvmlState.uuid
WHOLE = "nvidia.com/gpu"
SMALL = "nvidia.com/mig-1g.18gb"

BURST = 0.2
"""Seconds of quiet before what is measured: kdp answers the first change at once and puts together those of a burst."""

SOON = 1.5
"""Seconds within which an event must reach the kubelet's list: ten times the target of 150 ms."""


async def test_an_xid_reaches_the_kubelet_and_the_gpu_recovers(make: Make, figure: Figure) -> None:
    node, backend = make(hold_down=0.5)
    never = {"flaps": None}  # three errors in a row would be a quarantine otherwise
    async with SimulatedKubelet() as kubelet, serving(backend, kubelet, health_policy=never):
        await kubelet.until(allocatable={WHOLE: 2})
        took: list[float] = []
        for _ in range(3):
            await anyio.sleep(BURST)
            start = time.perf_counter()
            node.event("xid 1 94")
            await kubelet.until(allocatable={WHOLE: 1}, timeout=SOON)
            took.append(1e3 * (time.perf_counter() - start))
            start = time.perf_counter()
            await kubelet.until(allocatable={WHOLE: 2})
            assert time.perf_counter() - start > 0.4
        figure("an XID reaches the kubelet's list after, slowest of 3", max(took))
        assert kubelet.devices(WHOLE)[GPU(0)].health == "Healthy"


async def test_mig_is_divided_anew_while_the_plugin_runs(make: Make, figure: Figure) -> None:
    node, backend = make(MIG, mig="mixed")
    async with SimulatedKubelet() as kubelet, serving(backend, kubelet):
        await kubelet.until(allocatable={WHOLE: 1, SMALL: 2, "nvidia.com/mig-3g.71gb": 1})
        await anyio.sleep(BURST)
        start = time.perf_counter()
        node.change(1, instances=(*DIVIDED[:1], MigState(index=1, gi=9, slices=2, memory_mib=34000)))
        node.event("mig 1")
        resource = "nvidia.com/mig-2g.35gb"
        await kubelet.until(lambda: kubelet.allocatable().get(resource) == 1)
        figure("a new MIG profile is allocatable after", 1e3 * (time.perf_counter() - start))
        await kubelet.until(lambda: kubelet.allocatable().get(SMALL) == 0)  # what pods may hold stays listed, Unhealthy
        pod = await kubelet.admit(Pod.asking({resource: 1}))
        assert {node.host_path for node in pod.reply("main").devices} >= {
            "/dev/nvidia1",
            "/dev/nvidia-caps/nvidia-cap218",
        }


async def test_a_lost_gpu_comes_back(make: Make) -> None:
    node, backend = make(hold_down=0.3)
    async with SimulatedKubelet() as kubelet, serving(backend, kubelet):
        await kubelet.until(allocatable={WHOLE: 2})
        node.change(1, is_lost=True)
        node.event("xid 1 79")
        await kubelet.until(allocatable={WHOLE: 1}, timeout=SOON)
        await anyio.sleep(0.5)
        node.change(1, is_lost=False)
        await kubelet.until(allocatable={WHOLE: 2}, timeout=60)
        await anyio.sleep(BURST)
        node.event("xid 1 94")  # its events are heard again
        await kubelet.until(allocatable={WHOLE: 1}, timeout=SOON)


async def test_a_driver_that_comes_and_goes(make: Make, library: object) -> None:
    node, backend = make(NvmlState(init=9))
    async with SimulatedKubelet() as kubelet, serving(backend, kubelet):
        await anyio.sleep(0.5)
        assert not kubelet.allocatable()
        node.set(NvmlState())
        await kubelet.until(allocatable={WHOLE: 2}, timeout=60)
        node.set(attrs.evolve(NvmlState(), failing=(("nvmlEventSetWait_v2", 9, -1),), init=9))
        await kubelet.until(allocatable={WHOLE: 0}, timeout=60)
        node.set(NvmlState())
        await kubelet.until(allocatable={WHOLE: 2}, timeout=60)
