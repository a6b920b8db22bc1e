"""The fake library and its node beside an H100 with driver 580.159.04, in a virtual machine of its own.

``data/h100-580.json`` is what `make test-gpu` printed there, ``data/h100-580.tar.gz`` what `kdp snapshot nvidia-gpu
--redact serials,addresses,secrets` took; the name of the kernel was shortened.
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
H100 = NvmlState(gpus=(GpuState(name="NVIDIA H100 80GB HBM3", memory_mib=81559),), driver="580.159.04")

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


def test_the_fake_library_answers_as_an_h100(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    real = json.loads((DATA / "h100-580.json").read_text())
    codes = Codes(pynvml._nvmlGetFunctionPointer)
    _, backend = make(H100)
    with opened(backend):
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", codes)
        fake = answers(backend, codes)
    assert fake["calls"] == real["calls"]
    assert fake["fields"] == real["fields"] | OTHERWISE
    assert (fake["driver"], fake["gpu"]) == (real["driver"], real["gpu"])
    assert fake["events"] & real["events"] == fake["events"]


def test_an_h100_gets_what_its_node_has(make_node: MakeNode, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine has no /dev/nvidia-modeset, and its PCI functions are near no memory."""
    monkeypatch.setattr(NvmlState, "bus", staticmethod(lambda _index: "0000:00:06.0"))
    make_node(H100)
    host = kdp.hardware.Host.of_snapshot(DATA / "h100-580.tar.gz")
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
    assert (device.attributes["product"], device.attributes["memory"]) == ("NVIDIA-H100-80GB-HBM3", 81559)
