"""GPUs that the driver has taken and NVML does not report, because their initialization has failed or they are lost.

They have no UUID that anybody could ask for, so their PCI address is their id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import kdp
import kdp.hardware

from .gpus import address
from .nvml import ask, pynvml

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .gpus import Gpu

NVIDIA = 0x10DE
DISPLAY = 0x03
"""The PCI class of GPUs."""


def missing_gpus(host: kdp.hardware.Host, gpus: Sequence[Gpu]) -> list[kdp.hardware.PciFunction]:
    """Return the PCI functions of GPUs that the driver ``nvidia`` is bound to, and that NVML does not report.

    Virtual functions belong to virtual machines, and GPUs that the administrator has excluded
    (``NVreg_ExcludedGpus``) are meant to be absent.

    Args:
        host: The node's files.
        gpus: The GPUs that NVML reports. If one of them has no known address, it may be any of the functions, so none
            is returned.
    """
    if any(gpu.facts.bus is None for gpu in gpus):
        return []
    reported = {gpu.facts.bus for gpu in gpus} | _excluded()
    return [
        function
        for function in host.pci_functions(vendor=NVIDIA, class_code=DISPLAY, driver="nvidia")
        if function.address not in reported and function.physical_function is None
    ]


def _excluded() -> set[str]:
    """Return the addresses of the GPUs that the administrator has excluded from the driver."""
    found = (
        ask(pynvml.nvmlGetExcludedDeviceInfoByIndex, index)
        for index in range(ask(pynvml.nvmlGetExcludedDeviceCount) or 0)
    )
    return {address(info.pci) for info in found if info is not None}


def as_device(function: kdp.hardware.PciFunction, resource: str) -> kdp.Device:
    """Return a missing GPU as an unhealthy device.

    Args:
        function: Its PCI function.
        resource: The resource of whole GPUs.
    """
    facts = {"bus": function.address, "resource.kubernetes.io/pciBusID": function.address}
    return kdp.Device(
        id=function.address,
        resource=resource,
        health=kdp.Health.unhealthy(problem_of_missing(function)),
        numa_nodes=function.numa_nodes,
        attributes=kdp.hardware.attributes_of(facts),
    )


def problem_of_missing(function: kdp.hardware.PciFunction) -> str:
    """Return the reason with the GPU's address."""
    return (
        f"the driver nvidia is bound to the GPU {function.address}, and NVML does not report it; see the kernel's log: "
        "dmesg | grep NVRM"
    )
