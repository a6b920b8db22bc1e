from __future__ import annotations

import itertools

from kdp.allocation import Topology, explain
from kdp_nvidia_gpu.fake import GpuState, NvmlState

from .support import NVSWITCH, Make, opened

GPU = NvmlState.uuid


def _links(make: Make, state: NvmlState) -> dict[tuple[str, str], float]:
    _, backend = make(state)
    with opened(backend):
        return backend.links(backend.discover())


def test_an_nvswitch_connects_all_equally(make: Make) -> None:
    links = _links(make, NVSWITCH)
    assert links == dict.fromkeys(itertools.combinations(map(GPU, range(8)), 2), 1810.0)


def test_direct_links_count_for_their_pair(make: Make) -> None:
    state = NvmlState(
        gpus=(GpuState(nvlinks=(1, 1)), GpuState(nvlinks=(0, 0)), GpuState(), GpuState()),
        topology=((0, 1, 50), (2, 3, 10), (0, 2, 30), (1, 3, 20), (0, 3, 40)),
    )
    assert _links(make, state) == {
        (GPU(0), GPU(1)): 210.0,
        (GPU(0), GPU(2)): 30.0,
        (GPU(0), GPU(3)): 20.0,
        (GPU(1), GPU(2)): 10.0,
        (GPU(1), GPU(3)): 40.0,
        (GPU(2), GPU(3)): 50.0,
    }


def test_what_is_well_connected_is_preferred(make: Make) -> None:
    state = NvmlState(
        gpus=tuple(GpuState(nvlinks=(i ^ 1,) * 4, numa_node=i // 4) for i in range(8)),
        topology=tuple((a, b, 40) for a, b in itertools.combinations(range(8), 2) if a // 4 == b // 4),
    )
    _, backend = make(state)
    with opened(backend):
        devices = backend.discover()
        topology = Topology([device.unit for device in devices], backend.links(devices))
    held = [device for device in devices if device.id in (GPU(1), GPU(4), GPU(5), GPU(7))]
    assert {*explain("linked", held, 2, topology=topology).chosen} == {GPU(4), GPU(5)}
