"""The same class as a DRA driver: what its claims can select, and what they may ask for."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

import kdp
from kdp.dra.publishing.slices import Limits, Pool, pool_slices
from kdp.dra.standard_attributes import standard_attributes
from kdp_nvidia_gpu import GpuConfig, NvidiaGpu
from kdp_nvidia_gpu.fake import NvmlState
from kdp_nvidia_gpu.nvml import pynvml

from .support import MIG, Make, found, opened

GPU = NvmlState.uuid


def _published(backend: NvidiaGpu) -> dict[str, dict[str, Any]]:
    devices = found(backend).values()
    slices = pool_slices(
        [*devices],
        pool=Pool.of_node("gpu.nvidia.com", "node-0"),
        limits=Limits.of("v1.34.9"),
        standard={device.id: standard_attributes(device, backend.host) for device in devices},
    )
    return {device["name"]: device for each in slices for device in each.body["devices"]}


def test_claims_select_by_the_names_of_nvidias_own_driver(make: Make) -> None:
    node, backend = make(MIG, mig="mixed")
    whole, *parts = _published(backend).values()
    told = whole["attributes"]
    assert {name: told[name] for name in told if name not in ("product", "memory", "family", "compute", "bus")} == {
        "type": {"string": "gpu"},
        "resource": {"string": "nvidia.com/gpu"},
        "uuid": {"string": GPU(0)},
        "productName": {"string": "NVIDIA H200"},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driver": {"version": "580.159.3"},
        "driverVersion": {"version": "580.159.3"},
        "cuda": {"version": "13.0.0"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "resource.kubernetes.io/pciBusID": {"string": node.state.bus(0)},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3b"},
        "resource.kubernetes.io/numaNode": {"int": 0},
    }
    assert whole["capacity"] == {"memory": {"value": "143771Mi"}}
    assert [(part["attributes"]["type"], part["attributes"]["profile"]) for part in parts] == [
        ({"string": "mig"}, {"string": profile}) for profile in ("3g.71gb", "1g.18gb", "1g.18gb")
    ]
    assert {part["attributes"]["parentUUID"]["string"] for part in parts} == {GPU(1)}
    assert parts[0]["capacity"] == {"memory": {"value": "71424Mi"}, "multiprocessors": {"value": "48"}}


def _allocation(backend: NvidiaGpu, *ids: str, watts: int | None) -> kdp.Allocation:
    devices = {device.id: device for device in backend.discover()}
    return kdp.Allocation(
        resource="nvidia.com/gpu",
        devices=tuple(devices[each] for each in ids),
        deadline=0,
        config=GpuConfig(power_limit=watts),
    )


def _watts(*indices: int) -> list[int]:
    return [
        pynvml.nvmlDeviceGetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(index)) // 1000 for index in indices
    ]


def test_a_claim_limits_the_power_of_its_gpus_until_it_is_released(make: Make) -> None:
    _, backend = make(power_limits=True)
    with opened(backend):
        given = _allocation(backend, GPU(1), watts=450)
        assert backend.allocate(given).device_nodes
        assert _watts(0, 1) == [700, 450]
        backend.released(attrs.evolve(given, config=None))  # the state alone is what is kept
        assert _watts(0, 1) == [700, 700]
        backend.allocate(_allocation(backend, GPU(1), watts=None))
        assert _watts(0, 1) == [700, 700]


def test_admin_access_changes_nothing_about_a_gpu_that_others_use(make: Make) -> None:
    _, backend = make(power_limits=True)
    with opened(backend):
        backend.allocate(_allocation(backend, GPU(0), watts=450))
        admin = attrs.evolve(_allocation(backend, GPU(0), watts=300), admin_access=True)
        assert backend.allocate(admin).device_nodes
        assert _watts(0) == [450]
        backend.released(admin)
        assert _watts(0) == [450]


def test_a_limit_that_a_gpu_cannot_have_is_refused(make: Make) -> None:
    watts = 701
    _, backend = make(power_limits=True)
    with opened(backend), pytest.raises(kdp.AllocationError) as caught:
        backend.allocate(_allocation(backend, GPU(0), watts=watts))
    assert str(caught.value) == f"powerLimit {watts}: {GPU(0)} takes 200 to 700 W; ask for one of these"


def test_if_one_gpu_refuses_the_others_are_as_before(make: Make) -> None:
    _, backend = make(NvmlState(failing=(("nvmlDeviceSetPowerManagementLimit", 4, 1),)), power_limits=True)
    with opened(backend):
        with pytest.raises(kdp.AllocationError, match=r"error 4\); the plugin must be root$"):
            backend.allocate(_allocation(backend, GPU(0), GPU(1), watts=300))
        assert _watts(0) == [700]


def test_a_power_limit_that_was_refused_leaves_the_admins_own(make: Make) -> None:
    _, backend = make(require_idle=True)
    with opened(backend):
        pynvml.nvmlDeviceSetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(0), 300_000)
        given = _allocation(backend, GPU(0), watts=450)
        with pytest.raises(kdp.AllocationError, match=r"run the plugin with power_limits=true$"):
            backend.allocate(given)
        backend.released(given)
        assert _watts(0) == [300]


def test_a_power_limit_that_was_refused_for_a_part_leaves_its_gpu(make: Make) -> None:
    _, backend = make(MIG, mig="mixed", power_limits=True)
    with opened(backend):
        pynvml.nvmlDeviceSetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(1), 300_000)
        part = next(device.id for device in backend.discover() if device.id != device.unit)
        given = _allocation(backend, part, watts=450)
        with pytest.raises(kdp.AllocationError, match=r"is a part of a GPU; only a whole one has a limit$"):
            backend.allocate(given)
        backend.released(given)
        assert _watts(1) == [300]
