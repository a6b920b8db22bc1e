"""``require_idle``: a GPU that was given back is Unhealthy until nobody computes on it."""

from __future__ import annotations

import time
from typing import Any

import attrs
import pytest

import kdp
from kdp.allocation import Sharing, share
from kdp_nvidia_gpu.fake import NvmlState
from kdp_nvidia_gpu.watching import pids_of

from .support import MIG, Make, change, opened, watching

pytestmark = pytest.mark.usefixtures("looks_often")

GPU = NvmlState.uuid
CALLS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")


def released(device: kdp.Device, resource: str = "nvidia.com/gpu") -> kdp.Allocation:
    """Return the allocation of a container that has ended."""
    return kdp.Allocation(resource=resource, devices=(device,), deadline=time.monotonic() + 60)


def test_a_gpu_with_a_process_on_it_is_unhealthy_until_it_is_idle(make: Make) -> None:
    node, backend = make(require_idle=True, xids=["all=ignore"])
    node.change(0, pids=(4711, 42))
    with opened(backend), watching(backend) as report:
        backend.released(released(backend.discover()[0]))
        report.until(1)
        node.change(0, pids=())
        report.until(2)
    assert report.said == [(GPU(0), "in use by pid 42, 4711", "busy"), (GPU(0), "busy")]


def test_a_question_that_fails_does_not_make_a_gpu_idle(make: Make) -> None:
    node, backend = make(require_idle=True, xids=["all=ignore"])
    failing = attrs.evolve(node.state, failing=tuple((call, 999, 0) for call in CALLS))
    with opened(backend), watching(backend) as report:
        device = backend.discover()[0]
        node.set(failing)
        backend.released(released(device))
        report.until(1)
        node.set(change(attrs.evolve(failing, failing=()), 0, pids=(4711,)))
        report.until(2)
        node.set(change(failing, 0, pids=(4711,)))
        backend.released(released(device))  # asks at once
        node.set(attrs.evolve(failing, failing=()))
        report.until(3)
    unknown = "perhaps in use: NVML does not report who computes on it: Unknown Error (NVML error 999)"
    assert report.said == [
        (GPU(0), unknown, "busy"),
        (GPU(0), "in use by pid 4711", "busy"),
        (GPU(0), "busy"),
    ]


def test_a_shared_gpu_is_asked_when_the_last_container_has_given_it_back(make: Make) -> None:
    node, backend = make(require_idle=True, xids=["all=ignore"])
    node.change(0, pids=(4711,))
    shared: Any = share(backend, Sharing(replicas=2))
    with opened(backend), watching(backend) as report:
        held = [released(device, "nvidia.com/gpu.shared") for device in shared.discover()[:2]]
        shared.released(attrs.evolve(held[0], shared_with={GPU(0): held[1].ids}))
        node.change(0, pids=(42,))
        shared.released(held[1])
        report.until(1)
    assert report.said == [(GPU(0), "in use by pid 42", "busy")]


def test_older_libraries_are_asked_in_their_way(make: Make) -> None:
    node, backend = make(MIG, mig="mixed")
    node.change(0, pids=(7,))
    with opened(backend):
        handle = next(iter(backend.discover())).handle.handle
        assert pids_of(handle) == [7]
        node.set(attrs.evolve(node.state, failing=(("nvmlDeviceGetComputeRunningProcesses_v3", 13, -1),)))
        assert pids_of(handle) == [7]
        node.set(attrs.evolve(node.state, failing=tuple((call, 3, -1) for call in CALLS)))
        assert pids_of(handle) is None
