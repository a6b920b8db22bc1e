"""``require_idle``: a GPU that was given back is Unhealthy until nobody computes on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import attrs

import kdp
from kdp_example_nvidia_gpu.fake import NvmlState
from kdp_example_nvidia_gpu.watching import pids_of

from .support import MIG, Make, opened

GPU = NvmlState.uuid


class Report:
    """What a backend reports, in order."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.said: list[tuple[str, ...]] = []

    def rescan(self) -> None:
        """Nothing to see here."""

    def fault(self, ids_or_unit: str | Iterable[str], reason: str, *, kind: str = "fault") -> None:
        self.said.append((str(ids_or_unit), reason, kind))

    def clear(self, ids_or_unit: str | Iterable[str], *, kind: str = "fault") -> None:
        self.said.append((str(ids_or_unit), kind))

    def until(self, count: int) -> None:
        deadline = time.monotonic() + 20
        while len(self.said) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(self.said) == count, self.said


def _give_back(make: Make, **options: object) -> tuple[list[tuple[str, ...]], Report]:
    node, backend = make(**options)
    report = Report()
    with opened(backend):
        device = next(iter(backend.discover()))
        thread = threading.Thread(target=backend.watch, args=[report])
        thread.start()
        try:
            node.change(0, pids=(4711, 42))
            allocation = kdp.Allocation(resource="nvidia.com/gpu", devices=(device,), deadline=time.monotonic() + 60)
            deadline = time.monotonic() + 20
            while not report.said and options and time.monotonic() < deadline:
                backend.released(allocation)
                time.sleep(0.01)
            backend.released(allocation)
            busy = [*report.said]
            node.change(0, pids=())
            report.until(len(busy) * 2)
            return busy, report
        finally:
            report.stopping.set()
            thread.join()


def test_a_gpu_with_a_process_on_it_is_unhealthy_until_it_is_idle(make: Make) -> None:
    busy, report = _give_back(make, require_idle=True)
    assert busy == [(GPU(0), "in use by pid 42, 4711", "busy")]
    assert report.said[1] == (GPU(0), "busy")


def test_by_default_nobody_asks(make: Make) -> None:
    """So kdp does not follow the pods for nothing."""
    _, backend = make()
    _, idle = make(require_idle=True)
    assert backend.unused_hooks == ("released",)
    assert idle.unused_hooks == ()


def test_older_libraries_are_asked_in_their_way(make: Make) -> None:
    node, backend = make(MIG, mig="mixed")
    node.change(0, pids=(7,))
    with opened(backend):
        handle = next(iter(backend.discover())).handle.handle
        assert pids_of(handle) == [7]
        node.set(attrs.evolve(node.state, failing=(("nvmlDeviceGetComputeRunningProcesses_v3", 13, -1),)))
        assert pids_of(handle) == [7]
        calls = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
        node.set(attrs.evolve(node.state, failing=tuple((call, 3, -1) for call in calls)))
        assert pids_of(handle) is None
