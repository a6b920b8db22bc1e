"""The NVSwitch fabric: the registration of a GPU, and the faults of its NVLinks.

Such a GPU answers every other question while the fabric is not ready, and each CUDA program ends with error 802
(``cudaErrorSystemNotReady``). A GPU without NVSwitch has the state "not supported".

Source of states, fields, and shifts: NVML API Reference, "Fabric definitions" and `nvmlGpuFabricInfo_v2_t`
(docs.nvidia.com/deploy/nvml-api). Source of error 802: NVIDIA Fabric Manager User Guide
(docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide).
"""

from __future__ import annotations

import ctypes
from typing import Any

from .nvml import ask, pynvml

_STATES = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: "has not been started",
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "is still being set up",
}

_TRUE = 1

_LINK_FAULTS = {
    2: "its NVLink routes are being recovered",
    4: "its NVLink routes are unhealthy",
    6: "its NVLinks recover from an access timeout",
}
"""What a field of two bits at this place of the health mask means if it is true.

The field at 0, a degraded bandwidth, is no fault: such a GPU computes, only slower.
"""

_CONFIGURATION_AT = 8
_CONFIGURATION_FAULTS = {
    2: "wrong system GUID",
    3: "wrong serial number of the chassis",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible firmware",
    7: "invalid location",
    8: "invalid state of the GPU",
}
"""Values of the four bits at this place of the health mask; 0 is "not supported", 1 is "none"."""


def fabric_problem(handle: Any) -> str | None:
    """Return why a GPU cannot use its NVSwitch fabric; None if it can, or if the driver reports no fabric."""
    info: Any = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if ask(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info)) is None:
        # Drivers before 550 have the first version of the call, which has no health mask.
        info = pynvml.c_nvmlGpuFabricInfo_t()
        if ask(pynvml.nvmlDeviceGetGpuFabricInfo, handle, ctypes.byref(info)) is None:
            return None
    if info.state in _STATES:
        return (
            f"its NVSwitch fabric {_STATES[info.state]}, so CUDA would end with error 802; start nvidia-fabricmanager "
            "on the node, or set fabric_check=false if the driver is wrong"
        )
    if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        return None
    if info.status != pynvml.NVML_SUCCESS:
        return (
            f"its registration with the NVSwitch fabric failed (NVML error {info.status}), so CUDA would end with "
            "error 802; see the log of nvidia-fabricmanager, or set fabric_check=false if the driver is wrong"
        )
    return _mask_problem(getattr(info, "healthMask", 0))


def _mask_problem(mask: int) -> str | None:
    faults = [text for shift, text in _LINK_FAULTS.items() if mask >> shift & 0x3 == _TRUE]
    configuration = mask >> _CONFIGURATION_AT & 0xF
    if configuration > 1:
        known = _CONFIGURATION_FAULTS.get(configuration, f"number {configuration}")
        faults.append(f"its NVSwitch fabric has an incorrect configuration ({known})")
    if not faults:
        return None
    return f"{' and '.join(faults)}; see nvidia-smi -q, or set fabric_check=false if the driver is wrong"
