from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from kdp_nvidia_gpu.backend import NvidiaGpu
from kdp_nvidia_gpu.fake import GpuState, NvmlState
from kdp_nvidia_gpu.fake.state import FIELDS
from kdp_nvidia_gpu.measuring import MEASUREMENTS
from kdp_nvidia_gpu.nvml import pynvml

from .support import Make, opened, watching

GPU = NvmlState.uuid
TWO = NvmlState(gpus=(GpuState(), GpuState()))
ALL = {each.name for each in MEASUREMENTS}

SELDOM = {"gpu_last_xid", "gpu_vgpu_licensed"}
"""What only some have: whoever watches errors, and virtual GPUs."""

EXACT = {
    "gpu_utilization": 0.37,
    "gpu_memory_copy_utilization": 0.12,
    "gpu_encoder_utilization": 0.05,
    "gpu_decoder_utilization": 0.07,
    "gpu_sm_clock": 1.98e9,
    "gpu_memory_clock": 2.619e9,
    "gpu_memory_used": (143771 << 20) / 4 - (480 << 20),
    "gpu_memory_reserved": 480 << 20,
    "gpu_memory_free": (143771 << 20) * 3 / 4,
    "gpu_memory_size": 143771 << 20,
    "gpu_temperature": 41,
    "gpu_memory_temperature": 55,
    "gpu_power": 123.45,
    "gpu_energy": 9_876_543.21,
    "gpu_pcie_replays": 6,
    "gpu_pcie_transmitted": 7e10,
    "gpu_pcie_received": 6e10,
    "gpu_nvlink_transmitted": 5e9 * 1024,
    "gpu_nvlink_received": 4e9 * 1024,
    "gpu_ecc_single_bit_volatile_errors": 12,
    "gpu_ecc_double_bit_volatile_errors": 1,
    "gpu_ecc_single_bit_aggregate_errors": 340,
    "gpu_ecc_double_bit_aggregate_errors": 2,
    "gpu_single_bit_retired_pages": 3,
    "gpu_double_bit_retired_pages": 4,
    "gpu_page_retirement_pending": 0,
    "gpu_correctable_remapped_rows": 8,
    "gpu_uncorrectable_remapped_rows": 9,
    "gpu_row_remap_pending": 0,
    "gpu_row_remap_failed": 0,
}

CALLS = {
    "nvmlDeviceGetUtilizationRates": {"gpu_utilization", "gpu_memory_copy_utilization"},
    "nvmlDeviceGetEncoderUtilization": {"gpu_encoder_utilization"},
    "nvmlDeviceGetDecoderUtilization": {"gpu_decoder_utilization"},
    "nvmlDeviceGetClockInfo": {"gpu_sm_clock", "gpu_memory_clock"},
    "nvmlDeviceGetMemoryInfo_v2": {"gpu_memory_reserved"},
    "nvmlDeviceGetTemperature": {"gpu_temperature"},
    "nvmlDeviceGetPowerUsage": {"gpu_power"},
    "nvmlDeviceGetGridLicensableFeatures_v4": set[str](),
    "nvmlDeviceGetFieldValues": {*EXACT}
    - {"gpu_utilization", "gpu_memory_copy_utilization", "gpu_encoder_utilization", "gpu_decoder_utilization"}
    - {"gpu_sm_clock", "gpu_memory_clock", "gpu_memory_used", "gpu_memory_free", "gpu_memory_size"}
    - {"gpu_memory_reserved"}
    - {"gpu_temperature", "gpu_power"},
}
"""What each call measures."""


def _measured(backend: NvidiaGpu) -> dict[str, dict[str, float]]:
    backend.discover()
    return backend.measure()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of NVML, as nvidia-ml-py looks them up."""
    seen: list[str] = []
    look_up: Callable[[str], Any] = pynvml._nvmlGetFunctionPointer

    def note(name: str) -> Any:
        seen.append(name)
        return look_up(name)

    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", note)
    return seen


def test_a_whole_gpu_measures_all_that_is_declared_in_base_units(make: Make) -> None:
    _, backend = make(TWO)
    with opened(backend):
        found = _measured(backend)
    assert {*found} == {GPU(0), GPU(1)}
    assert found[GPU(0)] == pytest.approx(EXACT)
    assert {*EXACT} == ALL - SELDOM
    assert (found[GPU(0)]["gpu_temperature"], found[GPU(1)]["gpu_temperature"]) == (41, 42)
    assert (found[GPU(0)]["gpu_sm_clock"], found[GPU(1)]["gpu_sm_clock"]) == (1.98e9, 1.979e9)


@pytest.mark.parametrize("call", CALLS)
def test_what_a_gpu_does_not_answer_is_left_out_and_told_one_time(
    make: Make, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    error = 3
    _, backend = make(attrs.evolve(TWO, failing=((call, error, 0),)))
    caplog.set_level(logging.DEBUG, "kdp_nvidia_gpu.measuring")
    with opened(backend):
        found = _measured(backend)
        told = [record.getMessage() for record in caplog.records if f"(NVML error {error})" in record.getMessage()]
        again = _measured(backend)
    assert {*EXACT} - {*found[GPU(0)]} == CALLS[call]
    assert {*found[GPU(1)]} == {*EXACT}
    assert {*again[GPU(0)]} == {*found[GPU(0)]}
    assert told
    assert all(text.startswith(f"{GPU(0)}: NVML does not report ") for text in told)
    assert len(told) == len([r for r in caplog.records if f"(NVML error {error})" in r.getMessage()])
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


def test_what_the_driver_reserves_is_not_used(make: Make) -> None:
    """As nvidia-smi counts; on an H100 that nobody used, NVML's first version of the call told 480 MiB."""
    _, backend = make(attrs.evolve(TWO, failing=(("nvmlDeviceGetMemoryInfo_v2", 13, 0),)))
    with opened(backend):
        found = _measured(backend)
    older, newer = found[GPU(0)], found[GPU(1)]
    assert older["gpu_memory_used"] == newer["gpu_memory_used"] + newer["gpu_memory_reserved"]
    assert newer["gpu_memory_size"] == sum(newer[f"gpu_memory_{part}"] for part in ("used", "free", "reserved"))


def test_a_field_that_a_gpu_does_not_have_is_left_out_alone(make: Make) -> None:
    for number in FIELDS:
        fields = {other: value for other, value in FIELDS.items() if other != number}
        _, backend = make(NvmlState(gpus=(GpuState(fields=fields), GpuState())))
        with opened(backend):
            found = _measured(backend)
        assert len(found[GPU(0)]) == len(EXACT) - 1, number
        assert {*found[GPU(1)]} == {*EXACT}, number


def test_bytes_that_are_counted_in_32_bits_are_left_out(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    fields = {**FIELDS, 197: (70_000, 1), 83: (123_000, 1), 94: (7, 9)}
    _, backend = make(NvmlState(gpus=(GpuState(fields=fields),)))
    caplog.set_level(logging.DEBUG, "kdp_nvidia_gpu.measuring")
    with opened(backend):
        found = _measured(backend)[GPU(0)]
    assert {*EXACT} - {*found} == {"gpu_pcie_transmitted", "gpu_pcie_replays"}
    assert found["gpu_energy"] == 123  # it would take months to turn over
    assert "NVML counts it in 32 bits" in caplog.text
    assert "NVML gives it a type that is not known, 9" in caplog.text


@pytest.mark.parametrize(("state", "expected"), [(5, 1.0), (4, 0.0)])
def test_a_virtual_gpu_tells_whether_it_has_its_license(make: Make, state: int, expected: float) -> None:
    _, backend = make(NvmlState(gpus=(GpuState(license=state), GpuState())))
    with opened(backend):
        found = _measured(backend)
    assert found[GPU(0)]["gpu_vgpu_licensed"] == expected
    assert "gpu_vgpu_licensed" not in found[GPU(1)]


def test_the_last_xid_is_that_of_each_gpu_while_errors_are_watched(make: Make) -> None:
    node, backend = make(TWO)
    with opened(backend):
        assert "gpu_last_xid" not in _measured(backend)[GPU(0)]
        with watching(backend) as report:
            node.event("xid 1 79")
            report.until(1)
            node.event("xid 1 94")
            report.until(2)
            found = backend.measure()
            assert (found[GPU(0)]["gpu_last_xid"], found[GPU(1)]["gpu_last_xid"]) == (0, 94)
        assert "gpu_last_xid" not in backend.measure()[GPU(1)]


def test_a_gpu_that_is_lost_since_it_was_discovered_is_asked_one_time(make: Make, asked: list[str]) -> None:
    node, backend = make(TWO)
    with opened(backend):
        backend.discover()
        node.change(0, is_lost=True)
        asked.clear()
        assert {*backend.measure()} == {GPU(1)}
        assert asked.count("nvmlDeviceGetUtilizationRates") == 2
        assert len(asked) - asked.count("nvmlErrorString") == 1 + 10
