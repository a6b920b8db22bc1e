"""What a library of NVML answers to the calls of this backend, to compare a fake one with a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kdp_nvidia_gpu.events import EventSet
from kdp_nvidia_gpu.measuring import FIELDS
from kdp_nvidia_gpu.nvml import GpuLost, pynvml

if TYPE_CHECKING:
    from collections.abc import Callable

    from kdp_nvidia_gpu import NvidiaGpu


def look(backend: NvidiaGpu) -> dict[str, str]:
    """Do all that a plugin does with the library, and return the health of each GPU.

    Instances of MIG are left out: one that tells no profile has no resource.
    """
    backend._scanner._facts.clear()  # which are asked once
    devices = backend.discover()
    backend.links(devices)
    backend.measure()
    try:
        with EventSet({device.unit: device.handle.handle for device in devices if device.handle.handle}) as events:
            if not events.is_empty:
                events.wait(1)
    except GpuLost:
        pass  # which the watch tells, and goes on by looking
    return {device.id: str(device.health) for device in devices if not device.id.startswith("MIG-")}


class Codes:
    """Looks functions up for nvidia-ml-py, and notes what each returns: NVML's errors, 0 where there is none."""

    def __init__(self, look_up: Callable[[str], Callable[..., int]]) -> None:
        self._look_up = look_up
        self.seen: dict[str, set[int]] = {}

    def __call__(self, name: str) -> Callable[..., int]:
        seen = self.seen.setdefault(name, set())
        try:
            function = self._look_up(name)
        except pynvml.NVMLError as error:
            seen.add(error.value)
            raise

        def call(*arguments: Any) -> int:
            code = function(*arguments)
            seen.add(code)
            return code

        return call


def answers(backend: NvidiaGpu, codes: Codes) -> dict[str, Any]:
    """Return what the library answered: nothing in it names the GPU.

    Args:
        backend: It is open, and the first of its GPUs is not in MIG mode.
        codes: What nvidia-ml-py looks functions up with.

    Returns:
        The driver, the GPU, NVML's code or codes of each call, and the code and the type of each field.
    """
    look(backend)
    gpu = backend._scanner.gpus[0]
    fields = pynvml.nvmlDeviceGetFieldValues(gpu.handle, [(field.number, field.scope) for field in FIELDS])
    return {
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "gpu": pynvml.nvmlDeviceGetName(gpu.handle),
        "events": pynvml.nvmlDeviceGetSupportedEventTypes(gpu.handle),
        "calls": {name: sorted(seen) for name, seen in sorted(codes.seen.items())},
        "fields": {
            field.measurement.name: [a.nvmlReturn, a.valueType] for field, a in zip(FIELDS, fields, strict=True)
        },
    }
