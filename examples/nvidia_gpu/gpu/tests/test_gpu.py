"""A real GPU: ``make test-gpu``. Without one everything here is skipped, with the reason.

In a process of its own, because the first libnvidia-ml that a process loads stays, and the other tests load a fake one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import anyio
import pytest

import kdp
import kdp.hardware
from kdp.testing import Pod, SimulatedKubelet
from kdp_nvidia_gpu import NvidiaGpu
from kdp_nvidia_gpu.events import EventSet
from kdp_nvidia_gpu.nvml import pynvml

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
from pathlib import Path

MULTIPROCESSORS = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, count = ctypes.c_void_p(), ctypes.c_int()
assert cuda.cuInit(0) == 0, "cuInit failed"
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuDeviceGetAttribute(ctypes.byref(count), 16, 0) == 0
print(count.value)
"""

CUDA = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
assert cuda.cuInit(0) == 0, "cuInit failed"
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
print(count.value)
"""

ISOLATED = """
set -eu
empty=$1; shift
program=$1; shift
mount -t tmpfs tmpfs "$empty"
for node in "$@" /dev/null /dev/zero /dev/urandom; do
    mkdir -p "$empty/$(dirname "${node#/dev/}")"
    : > "$empty/${node#/dev/}"
    mount --bind "$node" "$empty/${node#/dev/}"
done
mount --move "$empty" /dev
exec "$program" -c "$CUDA"
"""
"""Give a process a /dev with these nodes and no others, as a container has."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def backend() -> Generator[NvidiaGpu]:
    found = NvidiaGpu(kdp.hardware.Host(), strategies=["device-nodes"], mig="mixed")
    try:
        found.open()
    except kdp.NotReady as error:
        pytest.skip(f"no GPU here: {error}")
    yield found
    found.close()


def test_discovery_agrees_with_nvml_and_sysfs(backend: NvidiaGpu) -> None:
    devices = {device.unit: device for device in backend.discover()}
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        device = devices[pynvml.nvmlDeviceGetUUID(handle)]
        assert device.health.is_healthy, device.health
        pci = pynvml.nvmlDeviceGetPciInfo(handle).busId.lower()
        node = int(Path(f"/sys/bus/pci/devices/{pci[-12:]}/numa_node").read_text())
        assert device.numa_nodes == ((node,) if node >= 0 else ())
        assert f"/dev/nvidia{pynvml.nvmlDeviceGetMinorNumber(handle)}" in [
            n.host_path for n in device.edits.device_nodes
        ]


def test_what_is_measured_agrees_with_nvml(backend: NvidiaGpu) -> None:
    backend.discover()
    for uuid, measured in backend.measure().items():
        memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid), pynvml.nvmlMemory_v2)
        parts = [measured[f"gpu_memory_{part}"] for part in ("used", "free", "reserved")]
        assert measured["gpu_memory_size"] == memory.total == sum(parts)
        assert measured["gpu_memory_reserved"] == memory.reserved
        assert 0 < measured["gpu_temperature"] < 120
        assert 1 < measured["gpu_power"] < 2000


def test_waiting_for_an_event_takes_its_time_and_no_more(backend: NvidiaGpu) -> None:
    handles = {device.unit: device.handle.handle for device in backend.discover()}
    with EventSet(handles) as events:
        assert not events.is_empty
        began = time.monotonic()
        assert events.wait(200) is None
        took = time.monotonic() - began
    assert 0.15 < took < 2


def test_a_container_has_its_part_of_a_gpu_and_starts_only_beside_the_mps_daemon(backend: NvidiaGpu) -> None:
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        pytest.skip("nvidia-cuda-mps-control is not here")
    whole = _multiprocessors({})
    with tempfile.TemporaryDirectory(prefix="mps-") as pipe:  # a socket's path is short
        parts = NvidiaGpu(backend.host, strategies=["device-nodes"], mps=4, mps_pipe=pipe)
        with pytest.raises(kdp.NotReady, match=f"the MPS control daemon does not answer at {pipe}/control"):
            parts.open()
        env = {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_LOG_DIRECTORY": pipe}
        subprocess.run([control, "-d"], env=os.environ | env, check=True, timeout=20)
        try:
            parts.open()
            [part, *_] = [device for device in parts.discover() if device.health.is_healthy]
            asked = kdp.Allocation(resource="nvidia.com/gpu", devices=(part,), deadline=time.monotonic() + 20)
            parts.prepare_container(asked)
            held = _multiprocessors(parts.allocate(asked).env)
        finally:
            subprocess.run([control], input=b"quit\n", env=os.environ | env, check=True, timeout=20)
        with pytest.raises(kdp.AllocationError, match="does not answer"):
            parts.prepare_container(asked)
        parts.close()
    assert 0.2 * whole < held <= 0.25 * whole
    print(f"{held} of {whole} multiprocessors")


def _multiprocessors(env: Mapping[str, str]) -> int:
    done = subprocess.run(
        [sys.executable, "-c", MULTIPROCESSORS], env=os.environ | env, capture_output=True, check=True, timeout=60
    )
    return int(done.stdout)


async def test_cuda_sees_one_gpu_with_what_allocate_answers(backend: NvidiaGpu, tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a /dev of its own needs root and unshare")
    async with SimulatedKubelet() as kubelet, kubelet.serving(backend, timeout=60):
        await kubelet.until(lambda: any(kubelet.allocatable().values()), timeout=60)
        resource = next(name for name, count in kubelet.allocatable().items() if count)
        reply = (await kubelet.admit(Pod.asking({resource: 1}))).reply("main")
        done = await anyio.run_process(
            [
                *("unshare", "--mount", "--propagation", "private", "sh", "-c", ISOLATED, "sh", str(tmp_path)),
                *(sys.executable, *(node.host_path for node in reply.devices)),
            ],
            env={**reply.envs, "PATH": os.environ["PATH"], "CUDA": CUDA},
            stderr=subprocess.STDOUT,
            check=False,
        )
    assert done.returncode == 0, done.stdout.decode()
    assert done.stdout.decode().strip() == "1"
