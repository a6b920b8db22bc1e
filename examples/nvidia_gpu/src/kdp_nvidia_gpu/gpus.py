"""What GPUs are there, as NVML and sysfs tell it.

What does not change of a GPU while the driver is loaded is asked once.
Count, handle and UUID are all that we cannot do without; a GPU that refuses any other question is listed all the same.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import attrs

import kdp
import kdp.hardware

from .fabric import fabric_problem
from .mig import Instance, instances, is_enabled
from .nvml import GpuLost, ask, must, pynvml
from .partitions import Partition, partitions, place_of

if TYPE_CHECKING:
    from .options import Options

logger = logging.getLogger(__name__)

_RESETS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "a reset of the GPU",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "a reboot of the node",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "a drain of the node and a reset of the GPU",
}

_FAMILIES = (
    ((10, 0), "blackwell"),
    ((9, 0), "hopper"),
    ((8, 9), "ada-lovelace"),
    ((8, 0), "ampere"),
    ((7, 5), "turing"),
    ((7, 0), "volta"),
    ((6, 0), "pascal"),
    ((5, 0), "maxwell"),
    ((3, 0), "kepler"),
)


_BRANDS: dict[int | None, str] = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}


@attrs.frozen(kw_only=True)
class _Facts:
    """What of a GPU does not change while the driver is loaded; None: NVML does not say.

    Attributes:
        uuid: Its UUID.
        name: As ``NVIDIA H200``.
        minor: The number of its device node, ``/dev/nvidia<minor>``.
        bus: Its PCI address as sysfs writes it.
        memory_mib: Its memory in MiB.
        compute: Its compute capability.
        brand: As NVIDIA's DRA driver names it: ``Nvidia``.
        numa_nodes: The memory nodes near it.
    """

    uuid: str
    name: str | None
    minor: int | None
    bus: str | None
    memory_mib: int | None
    compute: tuple[int, int] | None
    brand: str | None
    numa_nodes: tuple[int, ...]

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to ask: what failed may have failed only this time."""
        return None not in (self.name, self.minor, self.bus, self.memory_mib, self.compute)

    @property
    def family(self) -> str | None:
        """The architecture, as GPU Feature Discovery names it."""
        if self.compute is None:
            return None
        return next((name for lowest, name in _FAMILIES if self.compute >= lowest), None)


@attrs.frozen(kw_only=True)
class Gpu:
    """A GPU as it is now.

    Attributes:
        index: Its number, which may be another after a reboot.
        facts: What does not change of it while the driver is loaded.
        is_mig: Whether it is in MIG mode; None: it has not said so yet, and is lost.
        instances: Its MIG instances.
        problem: Why it cannot be used; None: it can.
        partitions: What it can be divided into; none, unless it is in MIG mode.
        made: The partitions that its instances are, by UUID, as far as they are any.
        handle: NVML's; None: it is lost.
    """

    index: int
    facts: _Facts
    is_mig: bool | None = False
    instances: tuple[Instance, ...] = ()
    problem: str | None = None
    partitions: tuple[Partition, ...] = attrs.field(default=(), repr=False)
    made: dict[str, Partition] = attrs.field(factory=dict[str, Partition], repr=False, hash=False)
    handle: Any = attrs.field(default=None, eq=False, repr=False)

    @property
    def uuid(self) -> str:
        """Its UUID."""
        return self.facts.uuid


def problem_of(handle: Any, *, check_fabric: bool) -> str | None:
    """Return the fault of a GPU: broken memory, a reset that it needs, or its NVSwitch fabric.

    Args:
        handle: NVML's.
        check_fabric: Whether the fabric counts.

    Raises:
        GpuLost: It does not answer.
        kdp.NotReady: The driver is gone.
    """
    must(pynvml.nvmlDeviceGetUUID, handle)
    rows = ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None and rows[3]:
        return "row remapping has failed: the GPU's memory is broken, replace the GPU"
    wanted = _recovery_action(handle)
    if wanted in _RESETS:
        return f"the driver wants {_RESETS[wanted]}"
    return fabric_problem(handle) if check_fabric else None


def is_remap_pending(handle: Any) -> bool:
    """Return whether broken rows of memory wait for the next reset to be replaced."""
    rows = ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    return rows is not None and bool(rows[2])


def _recovery_action(handle: Any) -> int | None:
    field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    values = ask(pynvml.nvmlDeviceGetFieldValues, handle, [field])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    action: int = values[0].value.uiVal
    return action


@attrs.frozen
class _Lost:
    """A GPU that does not answer.

    Attributes:
        why: The reason.
        facts: What it has told before; None: not even which one it is.
    """

    why: str
    facts: _Facts | None


class Scanner:
    """Finds the GPUs, and remembers them: one that is lost does not tell any more which one it is."""

    def __init__(self, host: kdp.hardware.Host, options: Options) -> None:
        """Begin with nothing.

        Args:
            host: The node's files.
            options: The admin's.
        """
        self._host = host
        self._options = options
        self._partitions: dict[str, tuple[Partition, ...]] = {}
        self._facts: dict[str, _Facts] = {}
        self._seen: dict[int, Gpu] = {}
        self._told: set[int | str] = set()
        self._instances: dict[str, Instance] = {}

    def renew(self) -> None:
        """Ask each GPU for its facts again: a driver that was loaded anew numbers its device nodes anew."""
        self._facts.clear()

    def versions(self) -> dict[str, kdp.Version]:
        """Return the versions of the driver and of the CUDA that it brings, as far as NVML says."""
        found: dict[str, kdp.Version] = {}
        said: str = ask(pynvml.nvmlSystemGetDriverVersion) or ""
        driver = kdp.Version.parse(said)
        if driver is not None:
            found["driver"] = driver
        elif said and said not in self._told:
            self._told.add(said)
            logger.warning("driver version %r: begins with no number; devices have no attribute for it", said)
        cuda = ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        if cuda:
            found["cuda"] = kdp.Version(f"{cuda // 1000}.{cuda % 1000 // 10}.0")
        return found

    @property
    def gpus(self) -> list[Gpu]:
        """What the newest scan found."""
        return [*self._seen.values()]

    def scan(self) -> list[Gpu]:
        """Return the GPUs that are there, lost ones with the reason.

        Raises:
            kdp.NotReady: The driver is gone, or does not even say how many there are.
        """
        try:
            count = must(pynvml.nvmlDeviceGetCount)
        except GpuLost as error:
            raise kdp.NotReady(f"NVML does not report how many GPUs there are: {error}") from None
        answers = {index: self._gpu(index) for index in range(count)}
        there = {gpu.uuid for gpu in answers.values() if isinstance(gpu, Gpu)}
        for index, answer in answers.items():
            if isinstance(answer, _Lost) and (gpu := self._identified(index, answer, there)) is not None:
                there.add(gpu.uuid)
                answers[index] = gpu
        found = [gpu for gpu in answers.values() if isinstance(gpu, Gpu)]
        self._seen = {gpu.index: gpu for gpu in found}
        self._instances = {instance.uuid: instance for gpu in found for instance in gpu.instances}
        return found

    def _gpu(self, index: int) -> Gpu | _Lost:
        facts: _Facts | None = None
        try:
            handle = must(pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid = must(pynvml.nvmlDeviceGetUUID, handle)
            if not uuid:
                raise GpuLost("it has no UUID")
            facts = self._facts.get(uuid) or self._read(uuid, handle)
            is_mig = is_enabled(handle)
            if is_mig is None:
                raise GpuLost("it does not report whether it is in MIG mode")
            there = instances(handle, facts.memory_mib, self._instances) if is_mig else ()
            parts = self._divided(uuid, handle) if is_mig and self._options.mig == "dynamic" else ()
            gpu = Gpu(
                index=index,
                facts=facts,
                is_mig=is_mig,
                instances=there,
                partitions=parts,
                made=_made(handle, there, parts),
                # This asks for the UUID again, because a GPU that was lost meanwhile has given half of its answers.
                problem=problem_of(handle, check_fabric=self._options.fabric_check),
                handle=handle,
            )
        except GpuLost as error:
            return _Lost(str(error), facts)
        if facts.is_complete:
            self._facts[uuid] = facts
        self._told.discard(index)
        return gpu

    def _divided(self, uuid: str, handle: Any) -> tuple[Partition, ...]:
        """Return what a GPU can be divided into. Cached, because it never changes; a failed query is repeated."""
        if not self._partitions.get(uuid):
            self._partitions[uuid] = partitions(handle)
        return self._partitions[uuid]

    def _identified(self, index: int, lost: _Lost, there: set[str]) -> Gpu | None:
        """Return the GPU that was lost: the one that had this index, unless that is there under another one by now."""
        known = self._seen.get(index)
        if lost.facts is not None:
            uuid = lost.facts.uuid
            known = next(
                (gpu for gpu in self._seen.values() if gpu.uuid == uuid),
                Gpu(index=index, facts=lost.facts, is_mig=None),
            )
        if known is None or known.uuid in there:
            if index not in self._told:
                logger.error("GPU %d: %s; kdp cannot identify it, so it has no device under its UUID", index, lost.why)
                self._told.add(index)
            return None
        return attrs.evolve(known, index=index, problem=lost.why, handle=None)

    def _read(self, uuid: str, handle: Any) -> _Facts:
        pci = ask(pynvml.nvmlDeviceGetPciInfo_v3, handle)
        bus = None if pci is None else address(pci)
        memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        compute = ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
        return _Facts(
            uuid=uuid,
            name=ask(pynvml.nvmlDeviceGetName, handle),
            minor=self._minor(handle, bus),
            bus=bus,
            memory_mib=None if memory is None else memory.total >> 20,
            compute=None if compute is None else (compute[0], compute[1]),
            brand=_BRANDS.get(ask(pynvml.nvmlDeviceGetBrand, handle)),
            numa_nodes=self._numa_nodes(handle, bus),
        )

    def _minor(self, handle: Any, bus: str | None) -> int | None:
        minor: int | None = ask(pynvml.nvmlDeviceGetMinorNumber, handle)
        if minor is not None or bus is None:
            return minor
        # The driver's own file knows it as well.
        text = self._host.reading(f"/proc/driver/nvidia/gpus/{bus}/information").or_else("")
        lines = (line.partition(":") for line in text.splitlines())
        return next((int(told) for key, _, told in lines if key == "Device Minor" and told.strip().isdigit()), None)

    def _numa_nodes(self, handle: Any, bus: str | None) -> tuple[int, ...]:
        function = None if bus is None else self._host.pci_function(bus)
        if function is not None:
            return function.numa_nodes
        mask = ask(pynvml.nvmlDeviceGetMemoryAffinity, handle, 1, pynvml.NVML_AFFINITY_SCOPE_NODE)
        return () if mask is None else tuple(node for node in range(64) if mask[0] >> node & 1)


def _made(handle: Any, there: tuple[Instance, ...], parts: tuple[Partition, ...]) -> dict[str, Partition]:
    places = {(part.profile_id, part.start): part for part in parts}
    found: dict[str, Partition] = {}
    for instance in there if parts else ():
        part = None if instance.gi is None else places.get(place_of(handle, instance.gi) or (-1, -1))
        if part is not None:
            found[instance.uuid] = part
    return found


def address(pci: Any) -> str:
    """Return a PCI address as sysfs writes it, four digits of the domain at least: 0000:3b:00.0."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
