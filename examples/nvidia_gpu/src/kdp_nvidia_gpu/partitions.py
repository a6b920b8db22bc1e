"""Dynamic MIG (``mig=dynamic``, DRA only): a partition is created for a claim and destroyed after it.

A partition is a profile at a place: ``3g.71gb-4`` begins at memory slice 4. Which of them exclude one another the
scheduler knows by counters: each takes its memory slices by number, and its share of multiprocessors and engines of the
GPU's sum.

A partition is found again by its place, so nothing need be remembered: a plugin that is killed between making one and
noting it makes no second one, and destroys the first when the claim ends. What is in the way of a partition is a
leftover, because the scheduler has given its slices to nobody else; it is destroyed, unless somebody computes on it.

A partition is one GPU instance with one compute instance of its whole size. NVML has two numbers of a profile: the one
by which it is asked for, and the id by which instances are made.

Source: NVML's reference, "Multi Instance GPU Management".
"""

from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING, Any

import attrs

import kdp

from .mig import Instance, instances
from .nvml import ask, pynvml, reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .gpus import Gpu

logger = logging.getLogger(__name__)

_MOST_PROFILES = 32
_COMPUTE_PROFILES = 16

_ENGINES = {
    "copyEngines": "copyEngineCount",
    "decoders": "decoderCount",
    "encoders": "encoderCount",
    "jpegEngines": "jpegCount",
    "ofaEngines": "ofaCount",
}


@attrs.frozen(kw_only=True)
class Partition:
    """A profile at a place.

    Attributes:
        profile: As ``1g.10gb``.
        profile_id: The id by which instances are made.
        most: How many instances of the profile a GPU can have.
        start: Its first memory slice.
        size: How many memory slices it has.
        slices: Compute slices.
        memory_mib: Its memory in MiB.
        multiprocessors: Its streaming multiprocessors.
        engines: Its engines by kind; those that it has not are left out.
    """

    profile: str
    profile_id: int
    most: int
    start: int
    size: int
    slices: int
    memory_mib: int
    multiprocessors: int
    engines: dict[str, int] = attrs.field(factory=dict[str, int], hash=False)

    @property
    def name(self) -> str:
        """What tells it from others of its GPU: ``1g.10gb-0``."""
        return f"{self.profile}-{self.start}"

    @property
    def end(self) -> int:
        """The memory slice behind its last."""
        return self.start + self.size

    @property
    def consumes(self) -> dict[str, int]:
        """What it takes of its GPU's counters."""
        found = {_slice(number): 1 for number in range(self.start, self.end)}
        return found | {_counter(kind): amount for kind, amount in self._sums.items() if amount}

    @property
    def _sums(self) -> dict[str, int]:
        return {"multiprocessors": self.multiprocessors, **self.engines}

    def as_instance(self) -> Instance:
        """Return the instance that it would be."""
        return Instance(
            index=-1,
            uuid="",
            gi=None,
            ci=None,
            profile=self.profile,
            memory_mib=self.memory_mib,
            slices=self.slices,
            multiprocessors=self.multiprocessors,
            engines=self.engines,
        )


def set_name(gpu_uuid: str) -> str:
    """Return the name of a GPU's counter set."""
    return gpu_uuid.lower()


def _slice(number: int) -> str:
    return f"memory-slice-{number}"


def _counter(kind: str) -> str:
    return "".join(f"-{char.lower()}" if char.isupper() else char for char in kind)


def counters(found: Iterable[Partition]) -> dict[str, int]:
    """Return what the partitions of a GPU share; the largest profile has all multiprocessors and engines."""
    there = [*found]
    counted = {_slice(number): 1 for number in range(max((each.end for each in there), default=0))}
    for each in there:
        for name, amount in each.consumes.items():
            counted[name] = max(amount, counted.get(name, 0))
    return counted


def partitions(handle: Any) -> tuple[Partition, ...]:
    """Return the profiles of a GPU in MIG mode, the smallest first; none if the driver does not say."""
    found: list[Partition] = []
    for number in range(_MOST_PROFILES):
        info = ask(pynvml.nvmlDeviceGetGpuInstanceProfileInfoV, handle, number)
        name: str = "" if info is None else str(info.name).removeprefix("MIG ").strip()
        for start, size in _places(handle, info.id) if name else ():
            engines = {kind: int(getattr(info, field)) for kind, field in _ENGINES.items()}
            found.append(
                Partition(
                    profile=name,
                    profile_id=info.id,
                    most=max(1, info.instanceCount),
                    start=start,
                    size=size,
                    slices=info.sliceCount,
                    memory_mib=info.memorySizeMB,
                    multiprocessors=info.multiprocessorCount,
                    engines={kind: amount for kind, amount in engines.items() if amount},
                )
            )
    found = [*{each.name: each for each in reversed(found)}.values()]  # an id is one device's, whatever a driver tells
    return tuple(sorted(found, key=lambda each: (each.slices, each.memory_mib, each.profile, each.start)))


def _places(handle: Any, profile_id: int) -> list[tuple[int, int]]:
    count = ctypes.c_uint(0)
    call = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    if ask(call, handle, profile_id, None, ctypes.byref(count)) is None or not count.value:
        return []
    places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    if ask(call, handle, profile_id, places, ctypes.byref(count)) is None:
        return []
    return [(place.start, place.size) for place in places[: count.value]]


def place_of(handle: Any, gi: int) -> tuple[int, int] | None:
    """Return the profile's id and the first memory slice of a GPU instance; None: the driver does not say."""
    instance = ask(pynvml.nvmlDeviceGetGpuInstanceById, handle, gi)
    info = None if instance is None else ask(pynvml.nvmlGpuInstanceGetInfo, instance)
    return None if info is None else (info.profileId, info.placement.start)


# -- making and destroying ---------------------------------------------------------------------------------------------


def make(gpu: Gpu, wanted: Partition, others: Sequence[Partition]) -> Instance:
    """Return the instance of a partition; it is made, unless it is there.

    Args:
        gpu: The GPU.
        wanted: The partition.
        others: All that the GPU could have, for what is in the way.

    Raises:
        kdp.AllocationError: NVML refuses, or something in the way is in use.
    """
    what = f"{gpu.uuid}: MIG instance {wanted.name}"
    held = _instance_at(gpu.handle, wanted)
    try:
        if held is None:
            _clear(gpu, wanted, others)
            place = pynvml.c_nvmlGpuInstancePlacement_t(wanted.start, wanted.size)
            create = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
            held = create(gpu.handle, wanted.profile_id, ctypes.byref(place))
        if not _compute_instances(held, wanted):
            _make_compute_instance(held, wanted)
    except pynvml.NVMLError as error:
        hint = "; the plugin must be root" if error.value == pynvml.NVML_ERROR_NO_PERMISSION else ""
        raise kdp.AllocationError(f"{what} cannot be made: {reason(error)}{hint}") from None
    found = find(gpu, wanted)
    if found is None:
        raise kdp.AllocationError(f"{what} was made, and the driver does not show it; it is tried again")
    return found


def _make_compute_instance(held: Any, wanted: Partition) -> None:
    profile = _compute_profile(held, wanted)
    try:
        if profile is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        pynvml.nvmlGpuInstanceCreateComputeInstance(held, profile)
    except pynvml.NVMLError:
        ask(pynvml.nvmlGpuInstanceDestroy, held)  # nobody can use it so
        raise


def find(gpu: Gpu, wanted: Partition) -> Instance | None:
    """Return the instance of a partition as it is there now; None: it is not, or has nothing that CUDA could use."""
    held = _instance_at(gpu.handle, wanted)
    info = None if held is None else ask(pynvml.nvmlGpuInstanceGetInfo, held)
    if info is None:
        return None
    shown = instances(gpu.handle, gpu.facts.memory_mib, {})
    return next((each for each in shown if each.gi == info.id), None)


def destroy(gpu: Gpu, wanted: Partition) -> None:
    """Destroy the instance of a partition; it need not be there. A GPU that is lost has lost its instances, too.

    Raises:
        kdp.AllocationError: NVML refuses, as while somebody computes on it.
    """
    held = None if gpu.handle is None else _instance_at(gpu.handle, wanted)
    if held is None:
        return
    try:
        _destroy(held, wanted)
    except pynvml.NVMLError as error:
        raise kdp.AllocationError(
            f"{gpu.uuid}: MIG instance {wanted.name} cannot be destroyed: {reason(error)}"
        ) from None


def _destroy(held: Any, wanted: Partition) -> None:
    for compute in _compute_instances(held, wanted):
        pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(held)


def _clear(gpu: Gpu, wanted: Partition, others: Sequence[Partition]) -> None:
    """Destroy leftovers that are in the way."""
    for other in others:
        if other == wanted or other.end <= wanted.start or wanted.end <= other.start:
            continue
        held = _instance_at(gpu.handle, other)
        if held is not None:
            logger.warning(
                "%s: MIG instance %s is in the way of %s, and no claim has it: it is destroyed",
                gpu.uuid,
                other.name,
                wanted.name,
            )
            _destroy(held, other)


def _instance_at(handle: Any, wanted: Partition) -> Any:
    """Return NVML's handle of the GPU instance of a partition; None: there is none."""
    room = (pynvml.c_nvmlGpuInstance_t * wanted.most)()
    count = ctypes.c_uint(wanted.most)
    if ask(pynvml.nvmlDeviceGetGpuInstances, handle, wanted.profile_id, room, ctypes.byref(count)) is None:
        return None
    for held in room[: count.value]:
        info = ask(pynvml.nvmlGpuInstanceGetInfo, held)
        if info is not None and info.placement.start == wanted.start:
            return held
    return None


def _compute_profile(held: Any, wanted: Partition) -> int | None:
    """Return the id of the profile of a compute instance that has all of a GPU instance."""
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    for number in range(_COMPUTE_PROFILES):
        info = ask(pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfoV, held, number, shared)
        if info is not None and info.sliceCount == wanted.slices:
            found: int = info.id
            return found
    return None


def _compute_instances(held: Any, wanted: Partition) -> list[Any]:
    """Return NVML's handles of all compute instances of a GPU instance."""
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    found: list[Any] = []
    for number in range(_COMPUTE_PROFILES):
        info = ask(pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfoV, held, number, shared)
        if info is None:
            continue
        most = max(1, info.instanceCount)
        room = (pynvml.c_nvmlComputeInstance_t * most)()
        count = ctypes.c_uint(most)
        if ask(pynvml.nvmlGpuInstanceGetComputeInstances, held, info.id, room, ctypes.byref(count)) is not None:
            found += room[: count.value]
    return found
