"""The NVIDIA example as a process beside a whole kubelet and containerd, on GPUs that are not there."""

from __future__ import annotations

import os
import time

import pytest

from kdp_nvidia_gpu.fake import GpuState, NvmlState, compile_library

from .backend import Figure
from .commands import kdp_command
from .deploy import Nodes
from .nodekit import Kubelet
from .nodekit.image import STAY

RESOURCE = "nvidia.com/gpu"

OPENS = f"for d in /dev/nvidia*; do : <> $d && echo opened $d; done; env; echo done; {STAY}"

STATE = NvmlState(gpus=(GpuState(), GpuState(nvlinks=(0,)), GpuState(minor=7)))
SHARED = ("nvidiactl", "nvidia-uvm")


async def test_a_pod_gets_its_gpu_and_an_error_reaches_the_kubelet(kubelet: Kubelet, figure: Figure) -> None:
    try:
        library = compile_library(kubelet.work)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    state = kubelet.work / "state"
    state.write_text(STATE.text)
    Nodes(kubelet.work / "gpus/dev", *SHARED, "nvidia0", "nvidia1", "nvidia7")
    arguments = (
        *("run", "nvidia-gpu", "--poll-interval=3600", *kubelet.options, f"--set=library={library}"),
        *(f"--set=dev_root={kubelet.work}/gpus", "--set=strategies=envvar,device-nodes"),
        *("--set=nvidia_runtime=true", "--set=hold_down=2"),
    )
    env = {**os.environ, "FAKE_NVML": str(state)}
    async with kdp_command(kubelet.work / "plugin.log", *arguments, env=env):
        await _until_listed(kubelet, 3, 3)
        kubelet.put("one", {RESOURCE: 1}, OPENS)
        said = await kubelet.until_said("one", "done")
        held = next(i for i in range(3) if f"NVIDIA_VISIBLE_DEVICES={STATE.uuid(i)}\n" in f"{said}\n")
        node = STATE.gpus[held].minor or held
        opened = {line.removeprefix("opened /dev/") for line in said.splitlines() if line.startswith("opened ")}
        assert opened == {*SHARED, f"nvidia{node}"}

        other = next(i for i in range(3) if i != held)
        with (kubelet.work / "state.events").open("a") as events:
            events.write(f"xid {other} 48\n")
        began = time.monotonic()
        await _until_listed(kubelet, 3, 2)
        figure(
            f"{kubelet.containerd}: an XID is in a real kubelet's list after", 1e3 * (time.monotonic() - began), "ms"
        )
        kubelet.put("two", {RESOURCE: 2}, OPENS)
        refused = (await kubelet.until_pod("two", "Failed"))["status"]
        assert "Requested: 2, Available: 1" in refused["message"]
        await _until_listed(kubelet, 3, 3, times=2)  # it has recovered
        assert (await kubelet.until_pod("one", "Running"))["status"]["containerStatuses"][0]["restartCount"] == 0


async def _until_listed(kubelet: Kubelet, total: int, healthy: int, *, times: int = 1) -> None:
    words = f"totalCount={total} healthyCount={healthy}\n"
    await kubelet.until(lambda: kubelet.log("kubelet").count(words) >= times, f"the kubelet has logged {words!r}")
