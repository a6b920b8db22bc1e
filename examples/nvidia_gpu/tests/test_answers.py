"""Compare the fake library and its node with an H100 and an H200 of driver 580.159.04, each in a virtual machine.

`make test-gpu` printed ``data/h100-580.json`` there, and `kdp snapshot nvidia-gpu --redact serials,addresses,secrets`
took ``data/h100-580.tar.gz``; the name of the kernel was shortened. The files of the H200 are called alike.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kdp.hardware
from kdp_nvidia_gpu import NvidiaGpu
from kdp_nvidia_gpu.fake import GpuState, NvmlState
from kdp_nvidia_gpu.mig import MigMinors
from kdp_nvidia_gpu.nvml import pynvml

from .answers import Codes, answers
from .conftest import MakeNode
from .support import Make, found, opened

DATA = Path(__file__).parent / "data"


def _node(name: str, memory_mib: int) -> NvmlState:
    return NvmlState(gpus=(GpuState(name=name, memory_mib=memory_mib),), driver="580.159.04")


CARDS = {
    "h100-580": _node("NVIDIA H100 80GB HBM3", 81559),
    "h200-580": _node("NVIDIA H200", 143771),
}
"""The fake nodes that are like the recorded ones, by the name of the recording."""

OTHERWISE = {
    # Other GPUs and drivers have these, so the fake one has them.
    "gpu_pcie_transmitted": [0, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG],
    "gpu_pcie_received": [0, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG],
    "gpu_nvlink_transmitted": [0, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG],
    "gpu_nvlink_received": [0, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG],
    "gpu_single_bit_retired_pages": [0, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT],
    "gpu_double_bit_retired_pages": [0, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT],
    "gpu_page_retirement_pending": [0, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT],
}
"""Fields that the fake library answers otherwise, on purpose."""


LATER = {"nvmlDeviceGetGpuFabricInfoV", "nvmlGetExcludedDeviceCount"}
"""Calls that this backend makes since the recordings."""


@pytest.mark.parametrize("card", CARDS)
def test_the_fake_library_answers_as_a_real_card(card: str, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    real = json.loads((DATA / f"{card}.json").read_text())
    codes = Codes(pynvml._nvmlGetFunctionPointer)
    _, backend = make(CARDS[card])
    with opened(backend):
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", codes)
        fake = answers(backend, codes)
    assert {name: seen for name, seen in fake["calls"].items() if name not in LATER} == real["calls"]
    assert fake["fields"] == real["fields"] | OTHERWISE
    assert (fake["driver"], fake["gpu"]) == (real["driver"], real["gpu"])
    assert fake["events"] & real["events"] == fake["events"]


@pytest.mark.parametrize("card", CARDS)
def test_a_real_card_gets_its_nodes(
    card: str, make_node: MakeNode, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual machine has no /dev/nvidia-modeset, and its PCI functions are near no memory."""
    monkeypatch.setattr(NvmlState, "bus", staticmethod(lambda _index: "0000:00:06.0"))
    make_node(CARDS[card])
    host = kdp.hardware.Host.of_snapshot(DATA / f"{card}.tar.gz")
    [device] = found(NvidiaGpu(host, strategies=["device-nodes"], library=library)).values()
    assert device.health.is_healthy
    assert device.numa_nodes == ()
    assert [node.host_path for node in device.edits.device_nodes] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia0",
    ]
    caps = "/dev/nvidia-caps/nvidia-cap"
    assert MigMinors(host).nodes(0, 1, 0) == (f"{caps}12", f"{caps}13")
    [gpu] = CARDS[card].gpus
    assert (device.attributes["product"], device.attributes["memory"]) == (gpu.name.replace(" ", "-"), gpu.memory_mib)
