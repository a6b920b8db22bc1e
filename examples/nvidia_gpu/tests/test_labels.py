from __future__ import annotations

import attrs
import pytest

from kdp.model.labels import check_node_label
from kdp_nvidia_gpu.backend import NvidiaGpu
from kdp_nvidia_gpu.fake import GpuState, MigState, NvmlState

from .support import MIG, Make, opened

TWO = NvmlState(gpus=(GpuState(), GpuState()))


def _labels(backend: NvidiaGpu) -> dict[str, str]:
    with opened(backend):
        found = backend.labels(backend.discover())
    for name, value in found.items():
        check_node_label(name, value)
    return found


def test_whole_gpus_are_labeled_as_gpu_feature_discovery_labels_them(make: Make) -> None:
    found = _labels(make(TWO)[1])
    state = GpuState()
    assert found["nvidia.com/gpu.count"] == "2"
    assert found["nvidia.com/gpu.product"] == state.name.replace(" ", "-")
    assert found["nvidia.com/gpu.memory"] == str(state.memory_mib)
    assert found["nvidia.com/gpu.present"] == "true"
    assert found["nvidia.com/mig.capable"] in ("true", "false")
    assert "nvidia.com/mig.strategy" not in found
    major, minor, *rest = TWO.driver.split(".")
    assert (found["nvidia.com/cuda.driver.major"], found["nvidia.com/cuda.driver.minor"]) == (major, minor)
    assert found["nvidia.com/cuda.driver-version.full"] == TWO.driver
    assert found.get("nvidia.com/cuda.driver.rev", "") == "".join(rest)
    assert {"nvidia.com/cuda.runtime.major", "nvidia.com/cuda.runtime.minor"} <= {*found}


def test_what_gpus_differ_in_is_no_label(make: Make) -> None:
    found = _labels(make(attrs.evolve(TWO, gpus=(GpuState(), attrs.evolve(GpuState(), name="NVIDIA Other"))))[1])
    assert "nvidia.com/gpu.product" not in found
    assert found["nvidia.com/gpu.count"] == "2"
    assert "nvidia.com/gpu.memory" in found


def test_instances_of_one_profile_take_the_place_of_whole_gpus(make: Make) -> None:
    same = GpuState(is_mig=True, instances=(MigState(index=0, gi=7), MigState(index=1, gi=8)))
    found = _labels(make(NvmlState(gpus=(same, same)), mig="single")[1])
    assert found["nvidia.com/gpu.count"] == "4"
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H200-MIG-1g.18gb"
    assert (found["nvidia.com/gpu.memory"], found["nvidia.com/gpu.slices.ci"]) == ("16384", "1")
    assert (found["nvidia.com/mig.strategy"], found["nvidia.com/mig.capable"]) == ("single", "true")


def test_instances_of_several_profiles_have_labels_of_their_own(make: Make) -> None:
    found = _labels(make(MIG, mig="mixed")[1])
    assert found["nvidia.com/mig.strategy"] == "mixed"
    assert (found["nvidia.com/gpu.count"], found["nvidia.com/mig-1g.18gb.count"]) == ("1", "2")
    assert found["nvidia.com/mig-3g.71gb.memory"] == "71424"
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H200"


def test_gpus_that_are_shared_by_mps_count_once_and_say_so(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdp_nvidia_gpu.mps.daemon_problem", lambda *_: None)
    found = _labels(make(TWO, mps=4)[1])
    assert (found["nvidia.com/gpu.count"], found["nvidia.com/gpu.replicas"]) == ("2", "4")
    assert found["nvidia.com/gpu.sharing-strategy"] == "mps"
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H200-SHARED"
