"""MIG: the instances that a GPU is divided into, the names of their profiles, and their device nodes.

A profile is named as NVIDIA's tools name it: ``1g.10gb`` is one slice and 10 GB; ``1c.3g.20gb`` one compute slice of an
instance with three; ``1g.10gb+me`` has the media engines, ``1g.24gb-me`` none. A resource's name has ``.`` for the
``+``.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import attrs

from .nvml import ask, pynvml

if TYPE_CHECKING:
    from collections.abc import Mapping

    import kdp.hardware

_MOST = 8
"""Instances looked for where the driver does not say how many there can be; 7 is the most today."""

_MOST_PROFILES = 32

_ENGINES = {
    "copyEngines": "CopyEngine",
    "decoders": "Decoder",
    "encoders": "Encoder",
    "jpegEngines": "Jpeg",
    "ofaEngines": "Ofa",
}

PROFILE = r"(?:\d+c\.)?\d+g\.\d+gb(?:[-+.][\w.+-]+)?"
"""The name of a profile, as a regular expression."""

_NAMED = re.compile(rf"\bMIG ({PROFILE})")
_MINOR = re.compile(r"gpu(?P<gpu>\d+)/gi(?P<gi>\d+)(?:/ci(?P<ci>\d+))?/access")


@attrs.frozen(kw_only=True)
class Instance:
    """A compute instance, what CUDA calls a MIG device.

    Attributes:
        index: Its number within its GPU, which shifts when others come and go.
        uuid: Its UUID.
        gi: The id of its GPU instance; None: unknown.
        ci: The id of the compute instance in it; None: unknown.
        profile: As ``1g.10gb``; None: unknown.
        memory_mib: Its memory in MiB; None: unknown.
        slices: Its compute slices; None: unknown.
        multiprocessors: Its streaming multiprocessors; None: unknown.
        engines: Its engines by kind, as NVIDIA's DRA driver names them; None: unknown.
        handle: NVML's.
    """

    index: int
    uuid: str
    gi: int | None
    ci: int | None
    profile: str | None
    memory_mib: int | None
    slices: int | None
    multiprocessors: int | None
    engines: dict[str, int] | None = attrs.field(default=None, hash=False)
    handle: Any = attrs.field(default=None, eq=False, repr=False)


def is_enabled(handle: Any) -> bool | None:
    """Return whether a GPU is in MIG mode now; None: the driver cannot say, which is not the same as no."""
    try:
        modes: list[int] = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError as error:
        is_unknown_to_it = error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return False if is_unknown_to_it else None
    return bool(modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE)


def can_be_divided(handle: Any) -> bool:
    """Return whether a GPU has a MIG mode, on or off."""
    return ask(pynvml.nvmlDeviceGetMigMode, handle) is not None


def instances(handle: Any, gpu_memory_mib: int | None, before: Mapping[str, Instance]) -> tuple[Instance, ...]:
    """Return the instances of a GPU in MIG mode. One that vanishes meanwhile, or has no UUID, is left out.

    Args:
        handle: NVML's, of the GPU.
        gpu_memory_mib: The GPU's memory in MiB; None: unknown.
        before: The instances of the last time by UUID: what the driver does not report now is as it was, since without
            its profile an instance in use would have no resource any more.
    """
    found: list[Instance] = []
    for index in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or _MOST):
        device = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        uuid = None if device is None else ask(pynvml.nvmlDeviceGetUUID, device)
        if not uuid:
            continue
        attributes = ask(pynvml.nvmlDeviceGetAttributes_v2, device)
        found.append(
            _completed(
                before.get(uuid),
                index=index,
                uuid=uuid,
                gi=ask(pynvml.nvmlDeviceGetGpuInstanceId, device),
                ci=ask(pynvml.nvmlDeviceGetComputeInstanceId, device),
                profile=_profile_of(ask(pynvml.nvmlDeviceGetName, device), attributes, gpu_memory_mib),
                memory_mib=None if attributes is None else attributes.memorySizeMB,
                slices=None if attributes is None else attributes.computeInstanceSliceCount,
                multiprocessors=None if attributes is None else attributes.multiprocessorCount,
                engines=None if attributes is None else _engines(attributes),
                handle=device,
            )
        )
    return tuple(found)


def _engines(attributes: Any) -> dict[str, int]:
    counts = {kind: int(getattr(attributes, f"shared{name}Count")) for kind, name in _ENGINES.items()}
    return {kind: count for kind, count in counts.items() if count}


def _completed(before: Instance | None, **facts: Any) -> Instance:
    known = {} if before is None else {name: getattr(before, name) for name, value in facts.items() if value is None}
    return Instance(**facts | known)


def _profile_of(name: str | None, attributes: Any, gpu_memory_mib: int | None) -> str | None:
    """Return the profile that newer drivers tell in the name, or that follows from slices and memory."""
    told = _NAMED.search(name or "")
    if told is not None:
        return told[1]
    if attributes is None or not gpu_memory_mib:
        return None
    # NVIDIA's tools count eighths of the GPU's memory, in whole GiB.
    eighths = math.ceil(attributes.memorySizeMB / gpu_memory_mib * 8)
    gigabytes = math.floor(eighths / 8 * math.ceil(gpu_memory_mib / 1024) + 0.5)
    compute, slices = attributes.computeInstanceSliceCount, attributes.gpuInstanceSliceCount
    part = "" if compute == slices else f"{compute}c."
    return f"{part}{slices}g.{gigabytes}gb"


def profile_names(handle: Any) -> set[str]:
    """Return the profiles that instances of a GPU in MIG mode can have; empty: the driver does not say."""
    found: set[str] = set()
    for number in range(_MOST_PROFILES):
        profile = ask(pynvml.nvmlDeviceGetGpuInstanceProfileInfoV, handle, number)
        name: str = "" if profile is None else profile.name
        if name:
            found.add(name.removeprefix("MIG ").strip())
    return found


class MigMinors:
    """The device nodes of MIG instances, as the driver tells them in /proc. One reading of the files.

    Two nodes belong to each: the one of its GPU instance and that of its compute instance. Containers may open an
    instance if they may open both.
    """

    PATH = "/proc/driver/nvidia-caps/mig-minors"
    CAPABILITIES = "/proc/driver/nvidia/capabilities"

    def __init__(self, host: kdp.hardware.Host) -> None:
        self._host = host
        self._minors: dict[tuple[int, int, int | None], int] = {}
        for line in host.reading(self.PATH).or_else("").splitlines():
            name, _, minor = line.strip().rpartition(" ")
            match = _MINOR.fullmatch(name)
            if match is not None and minor.isdigit():
                ci = None if match["ci"] is None else int(match["ci"])
                self._minors[int(match["gpu"]), int(match["gi"]), ci] = int(minor)

    def _minor(self, gpu: int, gi: int, ci: int | None) -> int | None:
        known = self._minors.get((gpu, gi, ci))
        if known is not None:
            return known
        part = "" if ci is None else f"/ci{ci}"
        path = f"{self.CAPABILITIES}/gpu{gpu}/mig/gi{gi}{part}/access"
        lines = (line.partition(":") for line in self._host.reading(path).or_else("").splitlines())
        return next((int(text) for key, _, text in lines if key == "DeviceFileMinor" and text.strip().isdigit()), None)

    def nodes(self, gpu_minor: int, gi: int, ci: int) -> tuple[str, str] | None:
        """Return the device nodes of an instance and of its GPU instance; None if the driver names none."""
        first, second = self._minor(gpu_minor, gi, None), self._minor(gpu_minor, gi, ci)
        if first is None or second is None:
            return None
        return f"/dev/nvidia-caps/nvidia-cap{first}", f"/dev/nvidia-caps/nvidia-cap{second}"
