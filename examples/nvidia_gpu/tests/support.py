"""What the tests share besides fixtures: states of hardware, and ways to look at a backend."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from typing import Any

import anyio
import anyio.to_thread
import attrs

import kdp
from kdp.testing import SimulatedKubelet
from kdp_nvidia_gpu import NvidiaGpu
from kdp_nvidia_gpu.fake import FakeNode, GpuState, MigState, NvmlState

Make = Callable[..., tuple[FakeNode, NvidiaGpu]]
"""The fixture ``make``."""

Figure = Callable[[str, float], None]


@contextlib.contextmanager
def opened(backend: NvidiaGpu) -> Generator[NvidiaGpu]:
    """Open a backend, as kdp does around all other hooks."""
    backend.open()
    try:
        yield backend
    finally:
        backend.close()


def found(backend: NvidiaGpu) -> dict[str, kdp.Device]:
    """Return what a backend discovers, by id."""
    with opened(backend):
        return {device.id: device for device in backend.discover()}


@contextlib.asynccontextmanager
async def serving(backend: NvidiaGpu, kubelet: SimulatedKubelet, **options: Any) -> AsyncGenerator[None]:
    """Serve without polling: what is seen is seen by events."""
    async with kubelet.serving(backend, host=backend.host, ready=False, poll_interval=3600, **options):
        yield
    # A thread that waits for an event cannot be interrupted, and would take the next test's: all use one library.
    for thread in threading.enumerate():
        if thread.name.startswith("kdp-") and thread.name.endswith(".watch"):
            await anyio.to_thread.run_sync(thread.join, 5)


class Report:
    """What a backend reports, in order."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.said: list[tuple[str, ...]] = []
        self.rescans = 0

    def rescan(self) -> None:
        self.rescans += 1

    def fault(self, ids_or_unit: str | Iterable[str], reason: str, *, kind: str = "fault") -> None:
        self.said.append((str(ids_or_unit), reason, kind))

    def clear(self, ids_or_unit: str | Iterable[str], *, kind: str = "fault") -> None:
        self.said.append((str(ids_or_unit), kind))

    def until(self, count: int) -> None:
        deadline = time.monotonic() + 20
        while len(self.said) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(self.said) == count, self.said


@contextlib.contextmanager
def watching(backend: NvidiaGpu) -> Generator[Report]:
    """Run the hook ``watch`` in a thread of its own, as kdp does."""
    report = Report()
    thread = threading.Thread(target=backend.watch, args=[report])
    thread.start()
    try:
        yield report
    finally:
        report.stopping.set()
        thread.join()


DIVIDED = (
    MigState(index=0, gi=2, slices=3, memory_mib=71424),
    MigState(index=1, gi=7),
    MigState(index=2, gi=8),
)
MIG = NvmlState(gpus=(GpuState(), GpuState(is_mig=True, instances=DIVIDED, numa_node=1)))
"""One whole GPU and one that is divided: 3g.71gb and two 1g.18gb."""

NVSWITCH = NvmlState(gpus=tuple(GpuState(nvlinks=(None,) * 18, numa_node=i // 4) for i in range(8)))


def change(state: NvmlState, index: int, **changes: Any) -> NvmlState:
    """Return a state with one GPU changed."""
    gpus = list(state.gpus)
    gpus[index] = attrs.evolve(gpus[index], **changes)
    return attrs.evolve(state, gpus=tuple(gpus))
