"""Each optional NVML call may fail alone, on a real library: the driver's, or the one that ``KDP_NVML`` names.

The library stays as it is; nvidia-ml-py is told that the call fails, at the place where it looks functions up.
``KDP_NVML`` is for mocks by others, such as that of NVIDIA/k8s-test-infra (``pkg/gpu/mocknvml``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

import kdp
import kdp.hardware
from kdp_nvidia_gpu import NvidiaGpu
from kdp_nvidia_gpu.nvml import pynvml

from ...tests.answers import Codes, answers, look

NEEDED = {"nvmlInitWithFlags", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlErrorString"}
IDENTITY = {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}
"""Without these nobody knows which GPUs there are."""

ERRORS = {"NotSupported": 3, "FunctionNotFound": 13, "GpuIsLost": 15, "Unknown": 999}


class Calls:
    """Looks functions up for nvidia-ml-py, notes which, and lets one of them fail."""

    def __init__(self, look_up: Callable[[str], Callable[..., int]]) -> None:
        self._look_up = look_up
        self.seen: set[str] = set()
        self.failing = ("", 0)

    def __call__(self, name: str) -> Callable[..., int]:
        self.seen.add(name)
        call, error = self.failing
        if name != call:
            return self._look_up(name)
        if error == ERRORS["FunctionNotFound"]:
            raise pynvml.NVMLError(error)
        return lambda *_arguments: error


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    made = Calls(pynvml._nvmlGetFunctionPointer)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", made)
    return made


@pytest.fixture
def backend(calls: Calls) -> Generator[NvidiaGpu]:
    """With a strategy that needs nothing of this machine but the library."""
    library = os.environ.get("KDP_NVML")
    found = NvidiaGpu(
        kdp.hardware.Host(),
        strategies=["envvar"],
        nvidia_runtime=True,
        mig="mixed",
        library=Path(library) if library else None,
    )
    try:
        found.open()
    except kdp.NotReady as error:
        pytest.skip(f"no GPU here: {error}")
    yield found
    calls.failing = ("", 0)
    found.close()


def test_what_each_call_answers(backend: NvidiaGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is printed, as examples/nvidia_gpu/tests/data/h100-580.json has it."""
    codes = Codes(pynvml._nvmlGetFunctionPointer)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", codes)
    found = answers(backend, codes)
    print(json.dumps(found))
    assert {call: found["calls"][call] for call in sorted(IDENTITY)} == {call: [0] for call in sorted(IDENTITY)}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_each_call_that_fails_alone_leaves_the_rest_listed(calls: Calls, backend: NvidiaGpu, error: int) -> None:
    expected = look(backend)
    assert expected
    asked = sorted(calls.seen - NEEDED - IDENTITY)
    assert len(asked) > 15
    found: dict[str, str] = {}
    for call in asked:
        calls.failing = (call, error)
        seen = look(backend)
        if call == "nvmlDeviceGetMigMode" and error in (ERRORS["GpuIsLost"], ERRORS["Unknown"]):
            assert {*seen.values()} == {"Unhealthy (it does not report whether it is in MIG mode)"}
        elif call == "nvmlDeviceGetMigMode":
            assert seen.items() >= expected.items()  # a divided one is taken for a GPU that cannot be divided
        elif seen != expected:
            changed = {id_: seen.get(id_) for id_ in expected if seen.get(id_) != expected[id_]}
            found[call] = f"{len(changed)} of {len(expected)} differ, as {next(iter(changed.items()), seen)}"
        calls.failing = ("", 0)
        assert look(backend) == expected, f"{call} has left something behind"
    print(f"{len(asked)} calls, {len(expected)} devices, {pynvml.nvmlSystemGetDriverVersion()}")
    assert not found
