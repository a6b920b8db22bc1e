"""The length of time slices as a claim's parameter, set by the driver's own tool."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

import kdp
from kdp.dra.claims.parameters import check_declared, read_parameters
from kdp_nvidia_gpu import GpuConfig, NvidiaGpu
from kdp_nvidia_gpu.fake import FakeNode, NvmlState
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


def test_the_tool_is_that_of_the_drivers_root(make_node: Any, library: Any) -> None:
    node: FakeNode = make_node()
    for path in ("usr/bin/nvidia-smi", "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"):
        place = node.tree.path(f"/run/nvidia/driver/{path}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(node.tree.path(f"/{path}").read_bytes())
        place.chmod(0o755)
    backend = NvidiaGpu(node.host, strategies=["device-nodes"], driver_root="/run/nvidia/driver", time_slices=True)
    with opened(backend):
        backend.allocate(allocation(backend, GPU(0), config=asked("Short")))
    assert node.tree.path("/run/nvidia/driver/usr/bin/nvidia-smi.log").read_text() == f"{GPU(0)} 1\n"


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


def test_without_the_tool_the_sentence_says_where_it_was_looked_for(make: Make) -> None:
    node, backend = make(time_slices=True)
    node.tree.path("/usr/bin/nvidia-smi").unlink()
    with opened(backend), pytest.raises(kdp.AllocationError, match=r"is not in / of the node; looked in usr/bin"):
        backend.allocate(allocation(backend, GPU(0), config=asked("Long")))


def test_a_part_has_none_nor_does_admin_access_change_any(make: Make) -> None:
    node, backend = make(MIG, mig="mixed", time_slices=True)
    with opened(backend):
        with pytest.raises(kdp.AllocationError, match=r"is a part of a GPU; only a whole one has time slices$"):
            backend.allocate(allocation(backend, node.state.mig_uuid(1, 0), config=asked("Long")))
        admin = allocation(backend, GPU(0), config=asked("Long"), admin_access=True)
        backend.allocate(admin)
        backend.released(admin)
    assert node.time_slices == []


def test_a_lost_gpu_has_nothing_to_be_restored(make: Make) -> None:
    node, backend = make(time_slices=True)
    with opened(backend):
        backend.allocate(allocation(backend, GPU(1), config=asked("Long")))
        node.change(1, is_lost=True)
        backend.released(allocation(backend, GPU(1), config=asked("Long")))
        assert node.time_slices == [f"{GPU(1)} 3"]


def test_without_the_admins_word_no_claim_sets_them(make: Make) -> None:
    _, backend = make()
    with opened(backend), pytest.raises(kdp.AllocationError, match=r"run the plugin with time_slices=true$"):
        backend.allocate(allocation(backend, GPU(0), config=asked("Long")))
