"""Every NVML call that is not needed may fail alone, in each way: the rest is listed as before."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from kdp_nvidia_gpu import NvidiaGpu
from kdp_nvidia_gpu.events import EventSet
from kdp_nvidia_gpu.fake import FakeNode, GpuState, NvmlState
from kdp_nvidia_gpu.fake.node import SOURCE, WHOLE

from .support import DIVIDED, Make, opened

NEEDED = {"nvmlInitWithFlags", "nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2"}
OF_ONE_GPU = {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}
"""Without these nobody knows which GPU it is; the others are not concerned."""

TEXT = SOURCE.read_text() + WHOLE.read_text()
CALLS = sorted({*re.findall(r"^int (nvml\w+)\(", TEXT, re.MULTILINE)} - NEEDED)

STATE = NvmlState(
    gpus=(
        GpuState(nvlinks=(None,) * 4),
        GpuState(nvlinks=(None,) * 4, is_mig=True, instances=DIVIDED, numa_node=1),
        GpuState(nvlinks=(None,) * 4),
    )
)


@pytest.fixture(scope="module")
def same_node(library: Path, tmp_path_factory: pytest.TempPathFactory) -> FakeNode:
    """One for all of these tests: only what fails differs."""
    return FakeNode(tmp_path_factory.mktemp("node") / "root", library=library, state=STATE)


@pytest.fixture
def node(same_node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    monkeypatch.setenv("FAKE_NVML", str(same_node.file))
    same_node.set(STATE)
    return same_node


def _backend(node: FakeNode) -> NvidiaGpu:
    return NvidiaGpu(node.host, strategies=["device-nodes"], mig="mixed")


@pytest.mark.parametrize("error", [3, 15], ids=["not-supported", "gpu-is-lost"])
def test_a_call_that_fails_of_one_gpu_leaves_the_others_as_they_were(node: FakeNode, error: int) -> None:
    with opened(_backend(node)) as backend:
        expected = [device for device in backend.discover() if device.unit != node.state.uuid(1)]
        links = backend.links(expected)
    assert all(device.health.is_healthy for device in expected)
    for call in CALLS:
        node.set(attrs.evolve(STATE, failing=((call, error, 1),)))
        with opened(_backend(node)) as backend:
            devices = backend.discover()
            assert [device for device in devices if device.unit != node.state.uuid(1)] == expected, call
            pair = (node.state.uuid(0), node.state.uuid(2))
            assert backend.links(devices)[pair] == links[pair], call


@pytest.mark.parametrize("error", [13, 999], ids=["function-not-found", "unknown"])
def test_a_call_that_fails_everywhere_leaves_all_gpus_listed(node: FakeNode, error: int) -> None:
    for call in sorted({*CALLS} - OF_ONE_GPU):
        node.set(attrs.evolve(STATE, failing=((call, error, -1),)))
        with opened(_backend(node)) as backend:
            devices = backend.discover()
            backend.links(devices)
        whole = {device.id: device.health.reason for device in devices if device.unit != node.state.uuid(1)}
        reason = None
        if call == "nvmlDeviceGetMigMode" and error == 999:
            reason = "it does not report whether it is in MIG mode"  # to guess would be to hand out what is divided
        if call == "nvmlDeviceGetMinorNumber":
            reason = "neither NVML nor /proc/driver/nvidia reports the number of its device node"
        assert whole == dict.fromkeys([node.state.uuid(0), node.state.uuid(2)], reason), call


def test_an_instance_that_was_listed_stays_what_it_is_when_a_call_fails_later(node: FakeNode) -> None:
    with opened(_backend(node)) as backend:
        expected = backend.discover()
        assert len(expected) == 5
        node.set(attrs.evolve(STATE, failing=(("nvmlDeviceGetGpuInstanceId", 999, -1),)))
        assert backend.discover() == expected


def test_the_number_of_the_node_is_known_from_proc_as_well(make: Make) -> None:
    node, backend = make(attrs.evolve(NvmlState(), failing=(("nvmlDeviceGetMinorNumber", 3, -1),)))
    for index in (0, 1):
        path = f"/proc/driver/nvidia/gpus/{node.state.bus(index)}/information"
        node.tree.write(path, f"Model: \t\t NVIDIA H200\nDevice Minor: \t {index}")
    with opened(backend):
        assert [device.edits.device_nodes[-1].host_path for device in backend.discover()] == [
            "/dev/nvidia0",
            "/dev/nvidia1",
        ]


def test_a_gpu_without_events_does_not_keep_the_others_from_theirs(make: Make) -> None:
    node, backend = make(attrs.evolve(NvmlState(), failing=(("nvmlDeviceRegisterEvents", 3, 0),)))
    with opened(backend):
        handles = {device.id: device.handle.handle for device in backend.discover()}
        with EventSet(handles) as events:
            node.event("xid 1 79")
            event = events.wait(1000)
    assert event is not None
    assert (event.uuid, event.xid, event.gi) == (node.state.uuid(1), 79, None)
