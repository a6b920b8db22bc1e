"""GPUs on the PCI bus that NVML does not report: seven of eight were listed, without a word."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import kdp
from kdp.testing import SimulatedKubelet
from kdp_nvidia_gpu.fake import FakeNode, GpuState, NvmlState

from .support import Make, found, opened

BUS = NvmlState.bus
GPU = NvmlState.uuid
THREE = NvmlState(gpus=(GpuState(), GpuState(), GpuState()))
TWO = NvmlState(gpus=(GpuState(), GpuState()))


def _bind(node: FakeNode, index: int, driver: str) -> None:
    directory = node.host.resolve(f"/sys/bus/pci/devices/{BUS(index)}")
    node.tree.link(f"{directory}/driver", f"/sys/bus/pci/drivers/{driver}")


def _reason(index: int) -> str:
    return (
        f"the driver nvidia is bound to the GPU {BUS(index)}, and NVML does not report it; see the kernel's log: "
        "dmesg | grep NVRM"
    )


def test_a_gpu_that_nvml_does_not_report_was_missing_in_silence(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    node, backend = make(THREE)
    for index in range(3):
        _bind(node, index, "nvidia")
    node.set(TWO)
    with opened(backend):
        backend.discover()
        devices = {device.id: device for device in backend.discover()}
        assert [*devices] == [GPU(0), GPU(1), BUS(2)]
        assert devices[BUS(2)].health.reason == _reason(2)
        given = kdp.Allocation(resource="nvidia.com/gpu", devices=(devices[BUS(2)],), deadline=0.0, admin_access=True)
        with pytest.raises(kdp.AllocationError, match="NVML does not report it"):
            backend.allocate(given)
        assert devices[BUS(2)].attributes["resource.kubernetes.io/pciBusID"] == BUS(2)
        labels = backend.labels([*devices.values()])
        assert backend.links([*devices.values()])
        node.set(THREE)
        assert [device.health.is_healthy for device in backend.discover()] == [True] * 3
    assert caplog.messages == [_reason(2)]
    assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.product"]) == ("2", "NVIDIA-H200")


def test_a_gpu_that_is_lost_when_the_plugin_starts_is_listed_by_its_address(make: Make) -> None:
    node, backend = make(THREE)
    for index in range(3):
        _bind(node, index, "nvidia")
    node.change(1, is_lost=True)
    assert {device.id: device.health.reason for device in found(backend).values()} == {
        GPU(0): None,
        GPU(2): None,
        BUS(1): _reason(1),
    }


@pytest.mark.parametrize("why", ["vfio-pci", "virtual function", "excluded", "address unknown"])
def test_a_gpu_that_is_meant_to_be_absent_is_not_listed(make: Make, why: str) -> None:
    node, backend = make(THREE)
    _bind(node, 2, "vfio-pci" if why == "vfio-pci" else "nvidia")
    if why == "virtual function":
        node.tree.link(f"{node.host.resolve(f'/sys/bus/pci/devices/{BUS(2)}')}/physfn", f"../{BUS(0)}")
    failing = (("nvmlDeviceGetPciInfo_v3", 3, 0),) if why == "address unknown" else ()
    excluded = (BUS(2),) if why == "excluded" else ()
    node.set(NvmlState(gpus=TWO.gpus, excluded=excluded, failing=failing))
    assert [*found(backend)] == [GPU(0), GPU(1)]


async def test_the_doctor_names_a_gpu_that_nvml_does_not_report(make: Make, tmp_path: Path) -> None:
    node, backend = make(THREE)
    _bind(node, 2, "nvidia")
    node.set(TWO)
    async with SimulatedKubelet() as kubelet, anyio.create_task_group() as tasks:
        places: dict[str, Any] = {
            "device_plugin_dir": kubelet.paths.device_plugin_dir,
            "pod_resources_dir": kubelet.paths.pod_resources_dir,
            "state_dir": tmp_path / "state",
        }
        tasks.start_soon(partial(kdp.serve, backend, host_root=node.root, **places))
        await kubelet.until(allocatable={"nvidia.com/gpu": 2})
        flags = [text for name, place in places.items() for text in (f"--{name.replace('_', '-')}", str(place))]
        doctor = [sys.executable, "-m", "kdp", "doctor", "--format", "json", *flags]
        done = await anyio.run_process(doctor, check=False)
        tasks.cancel_scope.cancel()
    answers = {each["id"]: each["seen"] for each in json.loads(done.stdout)["questions"]}
    assert answers["resource-allocatable"] == f"nvidia.com/gpu: 2 of 3 devices healthy; 1 device: {_reason(2)}"
