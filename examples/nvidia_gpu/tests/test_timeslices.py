"""The length of time slices as a claim's parameter, set by the driver's own tool."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

import kdp
from kdp.dra.claims.parameters import check_declared, read_parameters
from kdp_nvidia_gpu import GpuConfig, NvidiaGpu
from kdp_nvidia_gpu.fake import GpuState, NvmlState
from kdp_nvidia_gpu.power import Sharing, TimeSlicing

from .support import MIG, Make, opened

GPU = NvmlState.uuid


def asked(interval: Any) -> GpuConfig:
    return GpuConfig(sharing=Sharing(time_slicing_config=TimeSlicing(interval=interval)))


def allocation(backend: NvidiaGpu, *ids: str, **more: Any) -> kdp.Allocation:
    devices = {device.id: device for device in backend.discover()}
    return kdp.Allocation(resource="nvidia.com/gpu", devices=tuple(devices[each] for each in ids), deadline=0, **more)


def test_the_parameters_are_those_of_nvidias_driver() -> None:
    check_declared(GpuConfig)
    parameters = {
        "apiVersion": "gpu.nvidia.com/v1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
    }
    entry = {"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}
    found = read_parameters([entry], driver="gpu.nvidia.com", declared=GpuConfig)
    assert found.of_request("gpu") == asked("Long")
    parameters["sharing"] = {"timeSlicingConfig": {"interval": "Longest"}}
    with pytest.raises(kdp.KdpError, match=r"sharing.timeSlicingConfig.interval .*one of 'Default', 'Short'"):
        read_parameters([entry], driver="gpu.nvidia.com", declared=GpuConfig)


def test_a_claim_has_slices_of_its_length_until_it_is_released(make: Make) -> None:
    node, backend = make(time_slices=True)
    with opened(backend):
        given = allocation(backend, GPU(0), GPU(1), config=asked("Long"))
        assert backend.allocate(given).device_nodes
        assert node.time_slices == [f"{GPU(0)} 3", f"{GPU(1)} 3"]
        backend.released(attrs.evolve(given, config=None))  # the state alone is what is kept
        assert node.time_slices[2:] == [f"{GPU(0)} 0", f"{GPU(1)} 0"]
        backend.released(attrs.evolve(given, state={}))  # killed before it was kept
        assert node.time_slices[4:] == [f"{GPU(0)} 0", f"{GPU(1)} 0"]
        backend.released(allocation(backend, GPU(0)))
        assert len(node.time_slices) == 6


def test_what_the_tool_says_is_the_sentence_and_others_are_as_before(make: Make) -> None:
    node, backend = make(time_slices=True)
    node.tree.write("/usr/bin/nvidia-smi.broken", "")
    with (
        opened(backend),
        pytest.raises(
            kdp.AllocationError, match=r"^timeSlicing Long: GPU-.*: nvidia-smi ended with exit code 4: .*Permissions$"
        ),
    ):
        backend.allocate(allocation(backend, GPU(0), config=asked("Long")))


def test_without_the_admins_word_no_claim_sets_them(make: Make) -> None:
    _, backend = make()
    with opened(backend), pytest.raises(kdp.AllocationError, match=r"run the plugin with time_slices=true$"):
        backend.allocate(allocation(backend, GPU(0), config=asked("Long")))


def test_a_claim_that_was_refused_without_time_slices_can_be_released(make: Make) -> None:
    node, backend = make(require_idle=True)
    with opened(backend):
        given = allocation(backend, GPU(0), config=asked("Long"))
        with pytest.raises(kdp.AllocationError, match=r"run the plugin with time_slices=true$"):
            backend.allocate(given)
        node.tree.remove("/usr/bin/nvidia-smi")
        backend.released(attrs.evolve(given, state={}))
    assert not node.time_slices


@pytest.mark.parametrize(
    ("state", "mig"),
    [
        (NvmlState(gpus=(GpuState(), GpuState(is_mig=True)), profiles=("1g.18gb",)), "dynamic"),
        (MIG, "mixed"),
    ],
)
def test_a_claim_that_was_refused_for_a_part_of_a_gpu_can_be_released(make: Make, state: NvmlState, mig: str) -> None:
    node, backend = make(state, mig=mig, time_slices=True, require_idle=True)
    with opened(backend):
        part = next(device.id for device in backend.discover() if device.id != device.unit)
        given = allocation(backend, part, config=asked("Long"))
        with pytest.raises(kdp.AllocationError, match=r"is a part of a GPU; only a whole one has time slices$"):
            backend.allocate(given)
        backend.released(attrs.evolve(given, state={}))
    assert not node.time_slices
