"""The NVSwitch fabric: a GPU answers NVML, and each CUDA program on it ends with error 802."""

from __future__ import annotations

import attrs
import pytest

from kdp_nvidia_gpu.fake import GpuState, NvmlState
from kdp_nvidia_gpu.nvml import pynvml

from .support import DIVIDED, Make, found, opened

GPU = NvmlState.uuid
COMPLETED = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
WELL = 0x1AA
"""The mask of a GPU with all four link faults false and no incorrect configuration."""


def _reason(make: Make, fabric: tuple[int, int, int], **options: object) -> str | None:
    _, backend = make(NvmlState(gpus=(GpuState(fabric=fabric), GpuState())), **options)
    devices = found(backend)
    assert devices[GPU(1)].health.is_healthy
    return devices[GPU(0)].health.reason


@pytest.mark.parametrize(
    ("fabric", "reason"),
    [
        ((pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED, 0, 0), "has not been started, so CUDA would end with error 802"),
        ((pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS, 0, 0), "is still being set up, so CUDA would end with error 802"),
        ((COMPLETED, 999, WELL), "its registration with the NVSwitch fabric failed (NVML error 999)"),
        ((COMPLETED, 0, WELL & ~(3 << 4) | 1 << 4), "its NVLink routes are unhealthy; see nvidia-smi -q"),
        ((COMPLETED, 0, WELL & ~(3 << 2) | 1 << 2), "its NVLink routes are being recovered"),
        ((COMPLETED, 0, WELL & ~(3 << 6) | 1 << 6), "its NVLinks recover from an access timeout"),
        ((COMPLETED, 0, WELL & 0xFF | 4 << 8), "has an incorrect configuration (no partition)"),
        ((COMPLETED, 0, WELL & 0xFF | 9 << 8), "has an incorrect configuration (number 9)"),
    ],
)
def test_a_gpu_whose_fabric_is_not_ready_was_healthy(make: Make, fabric: tuple[int, int, int], reason: str) -> None:
    assert reason in (_reason(make, fabric) or "Healthy")
    assert _reason(make, fabric, fabric_check=False) is None


@pytest.mark.parametrize(
    "fabric",
    [
        (pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, 0, 0),
        (COMPLETED, 0, WELL),
        (COMPLETED, 0, 0),  # no field of the mask is supported
        (COMPLETED, 0, WELL & ~3 | 1),  # a degraded bandwidth
    ],
)
def test_a_gpu_that_computes_is_healthy(make: Make, fabric: tuple[int, int, int]) -> None:
    assert _reason(make, fabric) is None


def test_a_driver_with_the_first_version_of_the_call_is_asked_by_that(make: Make) -> None:
    sick = GpuState(fabric=(pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED, 0, 0))
    unknown = ("nvmlDeviceGetGpuFabricInfoV", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, -1)
    _, backend = make(NvmlState(gpus=(sick, GpuState()), failing=(unknown,)))
    assert [device.health.is_healthy for device in found(backend).values()] == [False, True]


def test_a_gpu_is_healthy_again_once_its_fabric_is_ready(make: Make) -> None:
    started = GpuState(fabric=(COMPLETED, 0, WELL))
    node, backend = make(NvmlState(gpus=(attrs.evolve(started, fabric=(2, 0, 0)),)))
    with opened(backend):
        assert not backend.discover()[0].health.is_healthy
        node.set(NvmlState(gpus=(started,)))
        assert backend.discover()[0].health.is_healthy


def test_the_instances_of_a_gpu_without_its_fabric_are_unhealthy(make: Make) -> None:
    divided = GpuState(is_mig=True, instances=DIVIDED, fabric=(1, 0, 0))
    _, backend = make(NvmlState(gpus=(divided,)), mig="mixed")
    assert [device.health.is_healthy for device in found(backend).values()] == [False] * len(DIVIDED)
