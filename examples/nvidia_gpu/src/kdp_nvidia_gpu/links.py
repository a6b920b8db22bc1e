"""How well GPUs are connected: what NVML tells of NVLink, NVSwitch and PCIe, as weights.

NVLink counts 100 for each link of a pair: those that lead to the other GPU, or, where links lead to switches, as many
as the one of the two has that has fewer (each GPU reaches each other through the switches with all its links). PCIe
counts 10 (across processors) to 60 (one board), so that no PCIe path is better than one NVLink.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

from .gpus import address
from .nvml import ask, pynvml

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .gpus import Gpu

NVLINK = 100.0
MOST_LINKS = 36
PCIE = {
    pynvml.NVML_TOPOLOGY_INTERNAL: 60.0,
    pynvml.NVML_TOPOLOGY_SINGLE: 50.0,
    pynvml.NVML_TOPOLOGY_MULTIPLE: 40.0,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: 30.0,
    pynvml.NVML_TOPOLOGY_NODE: 20.0,
    pynvml.NVML_TOPOLOGY_SYSTEM: 10.0,
}

_SWITCH = "switch"


def _remote(handle: Any, link: int, gpus: dict[str, str]) -> str | None:
    """Return where a link that is up leads: a GPU's UUID, or a switch; None: nobody knows."""
    pci = ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
    if pci is not None and (uuid := gpus.get(address(pci))):
        return uuid
    kind = ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    if kind is not None:
        return _SWITCH if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH else None
    return _SWITCH if pci is not None else None  # an older driver; what is no GPU here is a switch


def _links(gpu: Gpu, gpus: dict[str, str]) -> Counter[str]:
    """Count a GPU's links that are up by where they lead."""
    found: Counter[str] = Counter()
    for link in range(MOST_LINKS):
        try:
            is_up = pynvml.nvmlDeviceGetNvLinkState(gpu.handle, link)
        except pynvml.NVMLError:
            continue  # the GPU has no such link
        remote = _remote(gpu.handle, link, gpus) if is_up else None
        if remote is not None:
            found[remote] += 1
    return found


def weights(gpus: Sequence[Gpu]) -> dict[tuple[str, str], float]:
    """Return the weight of each pair of these GPUs by UUID; lost ones have no links."""
    there = [gpu for gpu in gpus if gpu.handle is not None]
    by_bus = {gpu.facts.bus: gpu.uuid for gpu in there if gpu.facts.bus is not None}
    links = {gpu.uuid: _links(gpu, by_bus) for gpu in there}
    found: dict[tuple[str, str], float] = {}
    for one, other in itertools.combinations(there, 2):
        # Both ends are asked, because one may be lost or silent; the pair has one weight.
        direct = max(links[one.uuid][other.uuid], links[other.uuid][one.uuid])
        switched = min(links[one.uuid][_SWITCH], links[other.uuid][_SWITCH])
        level = ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, one.handle, other.handle)
        found[one.uuid, other.uuid] = NVLINK * max(direct, switched) + PCIE.get(level, 0.0)
    return found
